//! Tests of the scanner.

use super::*;

/// Scans a text that arrives in pieces of this many bytes.
fn scan(text: &str, piece: usize) -> Result<Parts, ScanError> {
    let mut scanner = Scanner::default();
    let mut end = 0;
    while end < text.len() {
        end = text.len().min(end + piece);
        scanner.advance(&text.as_bytes()[..end])?;
    }
    scanner.finish()
}

/// The parts of a text as texts.
fn texts<'a>(text: &'a str, parts: &Parts) -> Vec<(&'static str, &'a str)> {
    let single = [("pod", &parts.pod), ("nodes", &parts.nodes), ("names", &parts.names), ("items", &parts.items)];
    let mut found: Vec<_> = single.into_iter().filter_map(|(name, extent)| Some((name, extent.clone()?))).collect();
    found.extend(parts.list_fields.iter().cloned());
    for node in &parts.nodes_found {
        found.push(("node", node.whole.clone()));
        found.extend(node.metadata.clone().map(|metadata| ("metadata of the node", metadata)));
    }
    found.into_iter().map(|(name, extent)| (name, &text[extent])).collect()
}

#[test]
fn parts_are_found_wherever_the_text_is_cut() {
    let text = concat!(
        r#" {"Pod" : {"metadata":{"name":"p","annotations":{"a":"}\"{\\"}}, "Nodes":{"items":[1]}},"#,
        r#""Nodes":{"metadata":{"items":[2]},"kind":"NodeList","items":["#,
        r#"{"spec":{"metadata":{"x":[[{}],[{"y":"]]]}}}\\"}]]}},"metadata": {"name":"a"} ,"#,
        r#" "status":{"é":"\u00e9\\\""}} , "#,
        r#"{"metadata":{"name":"b","deep":{"deep":{"deep":[1,2,[3,"four{[",5e6],null,true]}}}}"#,
        r#"],"apiVersion":"v1"},"NodeNames":null,"other":[{"items":[]}]}"#,
        "\n",
    );
    let expected = vec![
        ("pod", r#"{"metadata":{"name":"p","annotations":{"a":"}\"{\\"}}, "Nodes":{"items":[1]}}"#),
        ("nodes", &text[text.find(r#"{"metadata":{"items":[2]}"#).unwrap()..text.find(r#","NodeNames""#).unwrap()]),
        ("items", &text[text.find(r#"[{"spec""#).unwrap()..text.find(r#","apiVersion""#).unwrap()]),
        ("metadata", r#"{"items":[2]}"#),
        ("kind", r#""NodeList""#),
        ("apiVersion", r#""v1""#),
        (
            "node",
            concat!(
                r#"{"spec":{"metadata":{"x":[[{}],[{"y":"]]]}}}\\"}]]}},"metadata": {"name":"a"} ,"#,
                r#" "status":{"é":"\u00e9\\\""}}"#,
            ),
        ),
        ("metadata of the node", r#"{"name":"a"}"#),
        ("node", r#"{"metadata":{"name":"b","deep":{"deep":{"deep":[1,2,[3,"four{[",5e6],null,true]}}}}"#),
        ("metadata of the node", r#"{"name":"b","deep":{"deep":{"deep":[1,2,[3,"four{[",5e6],null,true]}}}"#),
    ];
    for piece in (1..40).chain([text.len()]) {
        assert_eq!(texts(text, &scan(text, piece).unwrap()), expected, "in pieces of {piece}");
    }
}

#[test]
fn names_come_in_any_case_and_null_is_as_if_it_were_missing() {
    let text = r#"{"pod":{},"NODES":null,"nodeNames":["a"]}"#;
    assert_eq!(texts(text, &scan(text, 3).unwrap()), [("pod", "{}"), ("names", r#"["a"]"#)]);
    let text = r#"{"Nodes":{"items":null}}"#;
    assert_eq!(texts(text, &scan(text, 3).unwrap()), [("nodes", r#"{"items":null}"#)]);
    let text = r#"{"Nodes":{"items":[ ]}}"#;
    assert_eq!(texts(text, &scan(text, 3).unwrap()), [("nodes", r#"{"items":[ ]}"#), ("items", "[ ]")]);
}

#[test]
fn brackets_that_do_not_match_are_an_error() {
    for text in [
        "",
        "{",
        r#"{"a":"}"#,
        "[}",
        r#"{"a":[}]"#,
        "{}}",
        "{}{}",
        "{} 1",
        "{},",
        "{}\"a\"",
        "1",
        r#"{"a":[[[[[[[[]]]]]]]}"#,
    ] {
        assert!(scan(text, 8).is_err(), "{text}");
    }
}
