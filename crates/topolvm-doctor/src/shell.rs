//! Commands for a shell.

use serde_json::Value;

/// Quotes an argument for a shell of POSIX, if it has to be quoted.
pub(crate) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the command that patches an object of the cluster by JSON patch.
pub(crate) fn patch(namespace: Option<&str>, kind: &str, name: &str, patch: &Value) -> String {
    let namespace = namespace.map(|namespace| format!(" -n {}", quote(namespace))).unwrap_or_default();
    format!("kubectl{namespace} patch {kind} {} --type=json -p {}", quote(name), quote(&patch.to_string()))
}

/// Returns the command that recreates an object in place of the one of this name.
pub(crate) fn replace(object: &Value) -> String {
    format!("echo {} | kubectl replace --force -f -", quote(&object.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        assert_eq!(quote("topolvm.io/device-class=ssd"), "topolvm.io/device-class=ssd");
        assert_eq!(quote("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quote(""), "''");
    }
}
