//! Redaction: removes everything that may be a secret from objects and logs. Secrets themselves are never read.

use serde_json::{Map, Value};

/// Text in the place of a redacted value.
pub(super) const REDACTED: &str = "REDACTED";
/// Parts of the names of secret values, without the `-` and `_` between their parts.
const NAMES: [&str; 8] = ["passw", "passphrase", "secret", "token", "credential", "apikey", "privatekey", "accesskey"];
/// A copy of the whole object, from before its redaction.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['-', '_'], "");
    NAMES.iter().any(|part| name.contains(part))
}

/// Redacts an object, or a list of objects.
pub(super) fn object(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(object),
        Value::String(text) => *text = lines(text),
        Value::Object(fields) => {
            if fields.get("kind").and_then(Value::as_str) == Some("ConfigMap") {
                configuration(fields);
            }
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                drop(metadata.remove("managedFields"));
                if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
                    drop(annotations.remove(LAST_APPLIED));
                    hide_named(annotations);
                }
            }
            // A variable of a container's environment
            let is_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            if let Some(value) = fields.get_mut("value").filter(|value| is_secret && value.is_string()) {
                *value = REDACTED.into();
            }
            for key in ["command", "args"] {
                if let Some(Value::Array(arguments)) = fields.get_mut(key) {
                    hide_arguments(arguments);
                }
            }
            fields.values_mut().for_each(object);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Redacts values whose keys are names of secrets.
fn hide_named(fields: &mut Map<String, Value>) {
    for (key, value) in fields {
        if is_secret(key) {
            *value = REDACTED.into();
        }
    }
}

/// Redacts arguments such as `--token=x`, and the argument after `--token`.
fn hide_arguments(arguments: &mut [Value]) {
    let mut hides_next = false;
    for argument in arguments {
        let Value::String(text) = argument else { continue };
        if hides_next && !text.starts_with('-') {
            REDACTED.clone_into(text);
        }
        hides_next = text.starts_with('-') && !text.contains('=') && is_secret(text);
        *text = line(text);
    }
}

/// Redacts the files in a ConfigMap.
fn configuration(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(data)) = fields.get_mut("data") {
        hide_named(data);
        for value in data.values_mut() {
            if let Value::String(text) = value {
                *text = settings(text);
            }
        }
    }
    if let Some(Value::Object(data)) = fields.get_mut("binaryData") {
        data.values_mut().for_each(|value| *value = REDACTED.into());
    }
}

/// Redacts lines such as `password: x`, with all that is indented below them.
fn settings(text: &str) -> String {
    let mut hidden_below: Option<usize> = None;
    let mut kept = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if hidden_below.is_some_and(|above| line.trim().is_empty() || indent > above) {
            continue;
        }
        hidden_below = None;
        let end = line.find([':', '=']);
        match end.and_then(|end| line.split_at_checked(end + 1)) {
            Some((key, value)) if is_secret(key) => {
                kept.push(format!("{key} {REDACTED}"));
                // A block, or a list
                hidden_below = Some(indent).filter(|_| value.trim().is_empty() || value.trim().starts_with(['|', '>']));
            }
            _ => kept.push(line.to_owned()),
        }
    }
    lines(&kept.join("\n"))
}

/// Redacts a text of several lines; private keys go whole.
fn lines(text: &str) -> String {
    let mut kept = Vec::new();
    let mut in_key = false;
    for each in text.split('\n') {
        if each.contains("-----BEGIN") && each.contains("PRIVATE KEY-----") {
            in_key = true;
            kept.push(REDACTED.to_owned());
        }
        if !in_key {
            kept.push(line(each));
        }
        in_key = in_key && !each.contains("-----END");
    }
    kept.join("\n")
}

/// Redacts a line of a log: values of `token=x` and `"token":"x"`, tokens after `Bearer`, and users in URLs.
pub(super) fn line(text: &str) -> String {
    without_users(&without_bearers(&without_values(text)))
}

fn without_values(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['=', ':']) {
        let (before, after) = rest.split_at(at + 1);
        kept += before;
        rest = after;
        let name = before.trim_end_matches(['=', ':']).trim_end_matches(['"', '\\']);
        let start = name.rfind(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))).map_or(0, |at| at + 1);
        if !name.get(start..).is_some_and(is_secret) {
            continue;
        }
        let opening = rest.len() - rest.trim_start_matches([' ', '"', '\\']).len();
        let (quote, value) = rest.split_at(opening);
        let ends: &[char] = if quote.contains('"') { &['"', '\\'] } else { &[' ', ',', '"', '}', ']', '\t'] };
        let end = value.find(ends).unwrap_or(value.len());
        if end > 0 {
            kept += quote;
            kept += REDACTED;
            rest = value.get(end..).unwrap_or_default();
        }
    }
    kept + rest
}

fn without_bearers(text: &str) -> String {
    const WORD: &str = "Bearer ";
    let mut parts = text.split(WORD);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([' ', '"', '\'', ',']).unwrap_or(part.len());
        kept.extend([WORD, REDACTED, part.get(end..).unwrap_or_default()]);
    }
    kept
}

fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['/', ' ', '"', '?']).unwrap_or(part.len());
        let host = part.get(..end).and_then(|authority| authority.rfind('@'));
        let rest =
            host.and_then(|at| part.get(at..)).map_or_else(|| part.to_owned(), |rest| REDACTED.to_owned() + rest);
        kept.extend(["://", &rest]);
    }
    kept
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn redaction_removes_secrets_from_objects_and_keeps_the_rest() {
        let mut list = json!([{
            "kind": "Pod",
            "metadata": {
                "name": "p", "managedFields": [1],
                "annotations": {LAST_APPLIED: "{\"token\":\"x\"}", "vault/token": "x", "a": "b"},
            },
            "spec": {
                "imagePullSecrets": [{"name": "pull-secret"}],
                "containers": [{
                    "name": "c", "args": ["--token=x", "--api-key", "x", "--v=5", "https://u:x@host/p"],
                    "env": [
                        {"name": "DB_PASSWORD", "value": "x"}, {"name": "LEVEL", "value": "debug"},
                        {"name": "MY_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ],
                }],
            },
        }]);
        object(&mut list);
        let expected = json!([{
            "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"vault/token": "REDACTED", "a": "b"}},
            "spec": {
                "imagePullSecrets": [{"name": "pull-secret"}],
                "containers": [{
                    "name": "c", "args": ["--token=REDACTED", "--api-key", "REDACTED", "--v=5",
                        "https://REDACTED@host/p"],
                    "env": [
                        {"name": "DB_PASSWORD", "value": "REDACTED"}, {"name": "LEVEL", "value": "debug"},
                        {"name": "MY_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ],
                }],
            },
        }]);
        assert_eq!(list, expected);
    }

    #[test]
    fn configuration_keeps_its_settings_without_secrets() {
        let file = "socket: /run/x\npassword: a b c\nprivateKey: |\n  line\n  line\nclasses:\n- name: ssd\n";
        let mut map = json!({
            "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"lvmd.yaml": file, "token": "x"},
                "binaryData": {"b": "eA=="},
        });
        object(&mut map);
        let shown = "socket: /run/x\npassword: REDACTED\nprivateKey: REDACTED\nclasses:\n- name: ssd";
        assert_eq!(map["data"], json!({"lvmd.yaml": shown, "token": "REDACTED"}));
        assert_eq!(map["binaryData"], json!({"b": "REDACTED"}));
    }

    #[rstest]
    #[case("level=info msg=\"x\" token=abc next=1", "level=info msg=\"x\" token=REDACTED next=1")]
    #[case(r#"{"level":"info","password":"a b","n":1}"#, r#"{"level":"info","password":"REDACTED","n":1}"#)]
    #[case(r#"body="{\"token\":\"abc\",\"n\":1}""#, r#"body="{\"token\":\"REDACTED\",\"n\":1}""#)]
    #[case("Authorization: Bearer abc.def rest", "Authorization: Bearer REDACTED rest")]
    #[case("GET https://me:pw@host:1/x?y 200", "GET https://REDACTED@host:1/x?y 200")]
    #[case("time: 12:30, device-class=ssd", "time: 12:30, device-class=ssd")]
    #[case("mail to a@b about https://host/p", "mail to a@b about https://host/p")]
    fn lines_of_logs_keep_what_is_no_secret(#[case] said: &str, #[case] kept: &str) {
        assert_eq!(line(said), kept);
    }

    #[test]
    fn private_keys_go_whole() {
        let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(lines(text), "a\nREDACTED\nb");
    }
}
