use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const REMOVE: DiskWish = DiskWish::Remove { bytes_per_second: None };
const EVACUATE: DiskWish = DiskWish::Evacuate { bytes_per_second: None };

const AGENT: &str = "waiting for topolvm-node, which has to run there in the version of this plugin";
const OFF: &str = "the wish is off the NodeStorage; waiting for its end to be told";

fn going(text: &str) -> Progress {
    Progress::Going(text.to_owned())
}

/// The NodeStorage of a node with one disk in a group.
fn storage(wish: &str, told: &Value, pv: &Value) -> NodeStorage {
    let annotations = if wish.is_empty() { json!({}) } else { json!({"disk.topolvm.io/u": wish}) };
    let pvs = if pv.is_null() { json!([]) } else { json!([pv]) };
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": annotations},
        "status": {
            "volumeGroups": [{"name": "data", "uuid": "g", "physicalVolumes": pvs}],
            "diskWishes": if told.is_null() { json!([]) } else { json!([told]) },
        },
    }))
    .unwrap()
}

fn pv(evacuation: &Value) -> Value {
    json!({"uuid": "u", "path": "/dev/sdb", "evacuation": evacuation})
}

fn told(wish: &str, state: &str) -> Value {
    json!({"disk": "u", "wish": wish, "state": state, "message": "no room"})
}

fn progress(wish: DiskWish, storage: &NodeStorage) -> String {
    let goal = Goal::Of { uuid: "u".to_owned(), wish };
    match goal.progress(ApiFlavor::TopoLvm, storage) {
        Progress::Going(text) => format!("going: {text}"),
        Progress::Done(text) => format!("done: {text}"),
        Progress::Refused(text) => format!("refused: {text}"),
        Progress::Dropped(text) => format!("dropped: {text}"),
    }
}

#[rstest]
#[case::not_seen_yet(Value::Null, Value::Null, "going: waiting for topolvm-node")]
#[case::asked_again(told("remove", "waiting"), Value::Null, "going: waiting: no room")]
#[case::refused(told("remove", "refused"), Value::Null, "refused: no room")]
#[case::refusal_of_another_wish(told("evacuate", "refused"), Value::Null, "going: waiting for topolvm-node")]
#[case::on_record(told("remove", "accepted"), Value::Null, "going: lvmd has it")]
#[case::moving(
    Value::Null,
    json!({"state": "moving", "remaining": "3Gi", "remove": true}),
    "going: /dev/sdb: 3Gi left to move"
)]
#[case::blocked(
    told("remove", "accepted"),
    json!({"state": "blocked", "message": "x", "remaining": "3Gi", "remove": true}),
    "going: /dev/sdb: 3Gi left to move, and it is blocked: x"
)]
#[case::empty(Value::Null, json!({"state": "empty", "remaining": "0", "remove": true}), "going: /dev/sdb is empty")]
fn a_removal_is_told_step_by_step(#[case] told: Value, #[case] evacuation: Value, #[case] expected: &str) {
    let said = progress(REMOVE, &storage("remove", &told, &pv(&evacuation)));
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn a_removal_is_done_when_all_groups_are_known_and_none_has_the_disk() {
    let mut gone = storage("remove", &told("remove", "accepted"), &Value::Null);
    assert!(progress(REMOVE, &gone).starts_with("done: the disk has left"));
    assert!(
        progress(DiskWish::Replace, &storage("", &Value::Null, &Value::Null)).starts_with("done: the volume group")
    );
    gone.status.as_mut().unwrap().volume_groups[0].stale_reason = "LVM hangs".to_owned();
    assert!(progress(REMOVE, &gone).starts_with("going"));
}

#[rstest]
#[case::earlier_refusal("replace", "refused", going(AGENT))]
#[case::taken("replace", "accepted", going("what /dev/sdb had is made again on other disks"))]
#[case::refused("", "refused", Progress::Refused("no room".to_owned()))]
fn replacement_is_refused_when_its_annotation_is_off(
    #[case] wish: &str,
    #[case] state: &str,
    #[case] expected: Progress,
) {
    let goal = Goal::Of { uuid: "u".to_owned(), wish: DiskWish::Replace };
    let storage = storage(wish, &told("replace", state), &pv(&Value::Null));
    assert_eq!(goal.progress(ApiFlavor::TopoLvm, &storage), expected);
}

#[test]
fn an_evacuation_is_done_when_the_disk_is_empty_and_a_stop_when_nobody_wishes_it_any_more() {
    let empty = json!({"state": "empty", "remaining": "0"});
    let said = progress(EVACUATE, &storage("evacuate", &Value::Null, &pv(&empty)));
    assert_eq!(said, "done: /dev/sdb is empty, and stays in volume group data without new volumes");
    let leaving = json!({"state": "empty", "remaining": "0", "remove": true});
    assert!(progress(EVACUATE, &storage("evacuate", &Value::Null, &pv(&leaving))).starts_with("going"));
    assert!(progress(DiskWish::Stop, &storage("stop", &Value::Null, &pv(&Value::Null))).starts_with("going"));
    assert!(progress(DiskWish::Stop, &storage("", &Value::Null, &pv(&empty))).starts_with("going"));
    assert!(progress(DiskWish::Stop, &storage("", &Value::Null, &pv(&Value::Null))).starts_with("done"));
}

#[test]
fn a_wish_that_somebody_changes_or_takes_off_is_not_waited_for() {
    let said = progress(REMOVE, &storage("stop", &Value::Null, &pv(&Value::Null)));
    assert!(said.starts_with("dropped: somebody wishes something else"), "{said}");
    let said = progress(REMOVE, &storage("", &Value::Null, &pv(&Value::Null)));
    assert!(said.starts_with("dropped: somebody has taken the wish off"), "{said}");
    let said = progress(EVACUATE, &storage("", &Value::Null, &Value::Null));
    assert!(said.starts_with("dropped: the disk is in no volume group"), "{said}");
}

#[test]
fn a_lvmd_that_does_not_answer_is_named() {
    let mut silent = storage("remove", &Value::Null, &pv(&Value::Null));
    let condition = json!({
        "type": "Ready", "status": "Unknown", "reason": "LvmdUnavailable", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    silent.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
    assert_eq!(progress(REMOVE, &silent), "going: waiting for lvmd, which does not answer topolvm-node");
}

#[rstest]
#[case::asked("ata-X", "candidate", "", going(AGENT))]
#[case::earlier_refusal("ata-X", "candidate", "refused", going(AGENT))]
#[case::added("", "candidate", "accepted", Progress::Done("ata-X is added".to_owned()))]
#[case::member("", "member", "", Progress::Done("ata-X is added".to_owned()))]
#[case::refused("", "candidate", "refused", Progress::Refused("no".to_owned()))]
#[case::off("", "candidate", "", going(OFF))]
fn an_addition_has_ended_when_the_wish_is_off(
    #[case] wished: &str,
    #[case] verdict: &str,
    #[case] state: &str,
    #[case] expected: Progress,
) {
    let told = json!([{"disk": "ata-X", "wish": "add", "state": state, "message": "no"}]);
    let storage: NodeStorage = serde_json::from_value(json!({
        "metadata": {"name": "n1", "annotations": {"topolvm.io/add-disks": wished}},
        "status": {
            "disks": [{"path": "/dev/sde", "stableName": "/dev/disk/by-id/ata-X", "verdict": verdict}],
            "diskWishes": if state.is_empty() { json!([]) } else { told },
        },
    }))
    .unwrap();
    assert_eq!(Goal::Add { name: "ata-X".to_owned() }.progress(ApiFlavor::TopoLvm, &storage), expected);
}
