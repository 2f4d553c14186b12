use rstest::rstest;
use serde_json::{Value, json};

use super::*;

const FINALIZER: &str = "topolvm.io/diskoperation";
const BLANK: &str = "/dev/disk/by-id/ata-X";

fn reading() -> Reading {
    let status = serde_json::from_value(json!({
        "volumeGroups": [{"name": "data", "uuid": "g", "physicalVolumes": [
            {"path": "/dev/sdb", "uuid": "plain", "allocatable": true},
            {"path": "/dev/sdc", "uuid": "moving", "evacuation": {"state": "moving"}},
            {"path": "/dev/sdd", "uuid": "leaving", "evacuation": {"state": "empty", "remove": true}},
            {"path": "/dev/sdf", "uuid": "empty", "evacuation": {"state": "empty"}},
            {"uuid": "gone", "missing": true},
        ]}],
        "disks": [
            {"path": "/dev/sde", "stableName": BLANK, "state": "candidate"},
            {"path": "/dev/vdb", "state": "refused"},
            {"path": "/dev/sdb", "stableName": "/dev/disk/by-id/ata-M", "state": "member"},
            {"path": "/dev/sdg", "stableName": "/dev/disk/by-id/ata-N", "state": "member", "diskGroup": "data"},
        ],
    }));
    Reading { status: Some(status.unwrap()), knows_disks: true, is_connected: true }
}

/// An operation of this type and for this disk, in this state: its phase, `recorded`, `held` and `deleted`.
fn operation(type_: &str, disk: &str, state: &[&str]) -> DiskOperation {
    let has = |flag: &str| state.contains(&flag);
    let status = json!({
        "phase": state.first().unwrap_or(&"Pending"), "diskUUID": if has("recorded") { disk } else { "" },
        "devicePath": "/dev/sdz", "volumeGroup": "data",
    });
    let finalizers = if has("held") { json!([FINALIZER]) } else { json!([]) };
    let deletion = if has("deleted") { json!("2026-01-01T00:00:00Z") } else { Value::Null };
    serde_json::from_value(json!({
        "metadata": {"name": "op", "finalizers": finalizers, "deletionTimestamp": deletion},
        "spec": {"nodeName": "n1", "disk": disk, "type": type_},
        "status": status,
    }))
    .unwrap()
}

fn step_with(operation: &DiskOperation, others: &[&DiskOperation], reading: &Reading) -> Step {
    next_step(operation, Situation { others, finalizer: FINALIZER, reading })
}

fn step(type_: &str, disk: &str, state: &[&str]) -> Step {
    step_with(&operation(type_, disk, state), &[], &reading())
}

fn record(uuid: &str, path: &str) -> Step {
    let (uuid, volume_group, path) = (uuid.to_owned(), "data".to_owned(), path.to_owned());
    Step::Record(RecordedDisk { uuid, volume_group, path })
}

fn evacuation(uuid: &str, remove: bool) -> Step {
    let (volume_group, uuid) = ("data".to_owned(), uuid.to_owned());
    Step::Call(DiskCall::Evacuate(EvacuateDiskRequest { volume_group, uuid, bytes_per_second: 0, remove }))
}

fn of(uuid: &str) -> DiskRequest {
    DiskRequest { volume_group: "data".to_owned(), uuid: uuid.to_owned() }
}

fn follow(state: &str, remove: bool) -> Step {
    Step::Follow(EvacuationStatus { state: state.to_owned(), remove, ..EvacuationStatus::default() })
}

fn add(path: &str, stable_name: &str) -> Step {
    Step::Call(DiskCall::Add(AddDiskRequest { path: path.to_owned(), stable_name: stable_name.to_owned() }))
}

const RUNNING: &[&str] = &["Running", "recorded", "held"];
const RECORDED: &[&str] = &["Pending", "recorded"];
const HELD: &[&str] = &["Pending", "recorded", "held"];
const DELETED: &[&str] = &["Running", "recorded", "held", "deleted"];

#[rstest]
#[case::new("Evacuate", "plain", &[], record("plain", "/dev/sdb"))]
#[case::by_name("Remove", "ata-M", &[], record("plain", "/dev/sdb"))]
#[case::missing("Replace", "gone", &[], record("gone", ""))]
#[case::recorded("Evacuate", "plain", RECORDED, Step::Hold)]
#[case::held("Evacuate", "plain", HELD, evacuation("plain", false))]
#[case::with_a_record_of_lvm("Evacuate", "moving", HELD, evacuation("moving", false))]
#[case::under_way("Evacuate", "moving", RUNNING, follow("moving", false))]
#[case::lost_by_lvmd("Evacuate", "plain", RUNNING, evacuation("plain", false))]
#[case::empty_and_to_be_removed("Remove", "empty", RUNNING, evacuation("empty", true))]
#[case::about_to_leave("Remove", "leaving", RUNNING, follow("empty", true))]
#[case::replacement("Replace", "gone", RECORDED, Step::Call(DiskCall::Replace(of("gone"))))]
#[case::replacement_under_way("Replace", "gone", &["Running", "recorded"], Step::Wait("the mirrors are rebuilt"))]
#[case::evacuated_disk_is_added("Add", "moving", &[], record("moving", "/dev/sdc"))]
#[case::evacuation_is_ended("Add", "moving", RECORDED, Step::Call(DiskCall::Stop(of("moving"))))]
#[case::canceled("Remove", "leaving", DELETED, Step::Call(DiskCall::Stop(of("leaving"))))]
#[case::finished("Evacuate", "empty", &["Succeeded", "recorded", "held"], Step::Release)]
#[case::released("Evacuate", "moving", &["Failed", "recorded"], Step::Rest)]
#[case::deleted_before_it_began("Remove", "plain", &["Pending", "deleted"], Step::Rest)]
fn step_follows_from_object_and_disk(
    #[case] type_: &str,
    #[case] disk: &str,
    #[case] state: &[&str],
    #[case] expected: Step,
) {
    assert_eq!(step(type_, disk, state), expected);
}

#[rstest]
#[case::blank("ata-X", add("/dev/sde", BLANK))]
#[case::by_its_whole_name(BLANK, add("/dev/sde", BLANK))]
#[case::without_a_name("/dev/vdb", add("/dev/vdb", ""))]
fn blank_disk_is_added_by_the_name_that_only_it_has(#[case] name: &str, #[case] expected: Step) {
    assert_eq!(step("Add", name, &[]), expected);
}

#[rstest]
#[case::empty("Evacuate", "empty", RUNNING, "/dev/sdz (UUID empty) of volume group data is empty")]
#[case::removed("Remove", "none", RUNNING, "has left the group")]
#[case::removed_before_it_was_accepted("Remove", "none", HELD, "has left the group")]
#[case::removed_while_it_is_deleted("Remove", "none", DELETED, "has left the group")]
#[case::replaced("Replace", "none", &["Running", "recorded"], "the group has forgotten it")]
#[case::allocatable_again("Add", "plain", RECORDED, "gets new volumes again")]
#[case::member("Add", "ata-M", &[], "in volume group data")]
#[case::member_that_lvm_shows_in_a_moment("Add", "ata-N", &[], "in disk group data")]
fn operation_succeeds_when_the_disk_is_as_requested(
    #[case] type_: &str,
    #[case] disk: &str,
    #[case] state: &[&str],
    #[case] expected: &str,
) {
    let ended = step(type_, disk, state);
    assert!(matches!(&ended, Step::End(End::Succeeded(message)) if message.contains(expected)), "{ended:?}");
}

#[rstest]
#[case::unknown("Remove", "none", &[], "DiskNotFound")]
#[case::path_of_one_with_a_name("Add", "/dev/sde", &[], "DiskNotFound")]
#[case::in_no_group("Remove", "ata-X", &[], "DiskNotFound")]
#[case::left_by_other_means("Evacuate", "none", RUNNING, "DiskNotFound")]
#[case::present("Replace", "plain", RECORDED, "NotMissing")]
fn impossible_operation_fails(#[case] type_: &str, #[case] disk: &str, #[case] state: &[&str], #[case] expected: &str) {
    let ended = step(type_, disk, state);
    assert!(matches!(&ended, Step::End(End::Failed { reason, .. }) if *reason == expected), "{ended:?}");
}

#[test]
fn second_operation_of_a_disk_conflicts_and_names_the_first() {
    let mut first = operation("Evacuate", "plain", RUNNING);
    first.metadata.name = Some("first".to_owned());
    for second in [operation("Remove", "ata-M", &[]), operation("Add", "plain", &[])] {
        let ended = step_with(&second, &[&first], &reading());
        let expected = "DiskOperation first (Evacuate)";
        let is_conflict = |reason: &str, message: &str| reason == "Conflict" && message.contains(expected);
        assert!(
            matches!(&ended, Step::End(End::Failed { reason, message }) if is_conflict(reason, message)),
            "{ended:?}"
        );
    }
    let another = operation("Remove", "empty", &[]);
    assert_eq!(step_with(&another, &[&first], &reading()), record("empty", "/dev/sdf"));
    let waiting = operation("Add", "ata-X", &[]);
    let ended = step_with(&operation("Add", BLANK, &[]), &[&waiting], &reading());
    assert!(matches!(ended, Step::End(End::Failed { reason: "Conflict", .. })), "{ended:?}");
}

#[test]
fn recorded_disk_is_used_whatever_its_name_means_now() {
    let mut renamed = operation("Evacuate", "plain", HELD);
    renamed.spec.disk = "ata-X".to_owned();
    assert_eq!(step_with(&renamed, &[], &reading()), evacuation("plain", false));
}

#[test]
fn nothing_is_concluded_while_lvmd_or_lvm_is_silent() {
    let away = Reading { is_connected: false, ..reading() };
    let removal = operation("Remove", "none", RUNNING);
    assert_eq!(step_with(&removal, &[], &away), Step::Wait(SILENT));
    assert_eq!(step_with(&removal, &[], &Reading::default()), Step::Wait(SILENT));
    for (uuid, stale) in [("", ""), ("g", "LVM hangs")] {
        let mut uncertain = reading();
        let group = &mut uncertain.status.as_mut().unwrap().volume_groups[0];
        (group.uuid, group.stale_reason) = (uuid.to_owned(), stale.to_owned());
        assert_eq!(step_with(&removal, &[], &uncertain), Step::Wait(UNCERTAIN));
        assert_eq!(step_with(&operation("Remove", "none", &[]), &[], &uncertain), Step::Wait(UNCERTAIN));
    }
    let blind = Reading { knows_disks: false, ..reading() };
    assert_eq!(step_with(&operation("Add", "ata-Y", &[]), &[], &blind), Step::Wait(SILENT));
}

#[test]
fn deletion_of_an_operation_without_a_disk_cancels_it() {
    let ended = step("Remove", "none", &["Pending", "held", "deleted"]);
    assert!(matches!(ended, Step::End(End::Canceled(_))), "{ended:?}");
}
