//! The report as text and as JSON.

use serde_json::{Value, json};
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_doctor::{Facts, ReadError};

use super::*;

/// 2026-01-01T01:00:00Z
const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

#[test]
fn people_read_findings_remedies_commands_and_the_reason() {
    let mut facts = Facts::empty(TopoLvm, "topolvm-system", NOW);
    let driver = json!({"metadata": {"name": "topolvm.io"}, "spec": {"attachRequired": false, "podInfoOnMount": true}});
    facts.drivers = Ok(vec![serde_json::from_value(driver).unwrap()]);
    let text = format_table(&examine(&facts));
    let line = text.lines().position(|line| line.starts_with("fail      csidriver ")).unwrap();
    let lines: Vec<_> = text.lines().skip(line).take(4).map(str::trim).collect();
    let patch = r#"[{"op":"add","path":"/spec/storageCapacity","value":true}]"#;
    assert!(lines[0].contains("kube-scheduler does not consider free space"), "{text}");
    assert!(lines[1].starts_with("to do: "), "{text}");
    assert_eq!(lines[2], format!("run: kubectl patch csidriver topolvm.io --type=json -p '{patch}'"));
    assert!(lines[3].starts_with("why: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("25 checks: "), "{text}");
}

#[test]
fn what_one_may_not_read_is_unknown_and_names_the_right() {
    let mut facts = Facts::empty(TopoLvm, "topolvm-system", NOW);
    let resource = "csinodes.storage.k8s.io".to_owned();
    facts.csi_nodes = Err(ReadError::Forbidden { verb: "list", resource });
    let report = examine(&facts);
    let json: Value = serde_json::from_str(&render(ReportFormat::Json, &report).unwrap()).unwrap();
    let answer = json["checks"].as_array().unwrap().iter().find(|check| check["name"] == "node-agents").unwrap();
    let expected = json!([{
        "result": "unknown", "found": "you may not list csinodes.storage.k8s.io",
        "remedy": "run doctor with an account that may list csinodes.storage.k8s.io, or request this right",
    }]);
    assert_eq!((&answer["result"], &answer["findings"]), (&json!("unknown"), &expected));
}
