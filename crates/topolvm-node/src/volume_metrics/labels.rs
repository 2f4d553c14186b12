//! Labels in the text format of OpenMetrics.

/// Writes the labels of a volume, which its series share.
pub(super) fn write_labels((namespace, claim): (&str, &str), device_class: &str, pods: &str) -> String {
    let mut labels = String::new();
    let pairs =
        [("namespace", namespace), ("persistentvolumeclaim", claim), ("device_class", device_class), ("pod", pods)];
    for (name, value) in pairs {
        if !labels.is_empty() {
            labels.push(',');
        }
        push_label(&mut labels, name, value);
    }
    labels
}

/// Appends a label. Backslash, quotation mark and line feed of the value are escaped.
pub(super) fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let labels = write_labels(("a\"b", "c\\d"), "e\nf", "");
        assert_eq!(labels, r#"namespace="a\"b",persistentvolumeclaim="c\\d",device_class="e\nf",pod="""#);
    }
}
