use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn going(text: &str) -> Progress {
    Progress::Going(text.to_owned())
}

#[rstest]
#[case::unseen(Value::Null, going("waiting for topolvm-node, which must run there in the version of this plugin"))]
#[case::recorded(json!({"phase": "Pending"}), going("waiting for lvmd"))]
#[case::waiting(json!({"phase": "Pending", "message": "lvmd is away"}), going("waiting: lvmd is away"))]
#[case::moving(json!({"phase": "Running", "message": "3Gi left to move"}), going("3Gi left to move"))]
#[case::blocked(
    json!({"phase": "Running", "message": "full", "conditions": [{
        "type": "Blocked", "status": "True", "reason": "EvacuationBlocked", "message": "full",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}),
    going("blocked: full")
)]
#[case::done(json!({"phase": "Succeeded", "message": "empty"}), Progress::Done("empty".to_owned()))]
#[case::failed(json!({"phase": "Failed", "message": "no"}), Progress::Failed("no".to_owned()))]
#[case::canceled(json!({"phase": "Canceled", "message": "deleted"}), going("deleted"))]
fn progress_follows_the_phase(#[case] status: Value, #[case] expected: Progress) {
    let spec = json!({"nodeName": "n1", "disk": "u", "type": "Remove"});
    let operation = serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec, "status": status}));
    assert_eq!(progress_of(&operation.unwrap()), expected);
}
