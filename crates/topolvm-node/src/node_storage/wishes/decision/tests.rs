use rstest::rstest;
use serde_json::json;

use super::*;

const BLANK: &str = "/dev/disk/by-id/ata-X";

fn reading() -> Reading {
    let status = serde_json::from_value(json!({
        "volumeGroups": [{"name": "data", "uuid": "g", "physicalVolumes": [
            {"path": "/dev/sdb", "uuid": "plain", "allocatable": true},
            {"path": "/dev/sdc", "uuid": "moving", "evacuation": {"state": "moving"}},
            {"path": "/dev/sdd", "uuid": "leaving", "evacuation": {"state": "moving", "remove": true}},
            {"uuid": "gone", "missing": true},
        ]}],
        "disks": [
            {"path": "/dev/sde", "stableName": BLANK, "verdict": "candidate"},
            {"path": "/dev/vdb", "verdict": "refused"},
            {"path": "/dev/sdb", "stableName": "/dev/disk/by-id/ata-M", "verdict": "member"},
        ],
    }));
    Reading { status: Some(status.unwrap()), knows_disks: true, is_connected: true }
}

fn known(wish: Wish<'_>, state: &str) -> DiskWishStatus {
    DiskWishStatus {
        disk: wish.disk().to_owned(),
        wish: wish.text().to_owned(),
        state: state.to_owned(),
        message: String::new(),
    }
}

fn step(wish: Wish<'_>, state: &str) -> Step {
    wish.next_step(&known(wish, state), &NodeStorageStatus::default(), &reading())
}

fn evacuation(uuid: &str, bytes_per_second: u64, remove: bool) -> Step {
    let (volume_group, uuid) = ("data".to_owned(), uuid.to_owned());
    Step::Call(DiskCall::Evacuate(EvacuateDiskRequest { volume_group, uuid, bytes_per_second, remove }))
}

fn of(uuid: &str) -> DiskRequest {
    DiskRequest { volume_group: "data".to_owned(), uuid: uuid.to_owned() }
}

#[rstest]
#[case::new("plain", "evacuate;bytes-per-second=5", "waiting", evacuation("plain", 5, false))]
#[case::lvmd_has_forgotten_it("plain", "evacuate", "accepted", evacuation("plain", 0, false))]
#[case::on_record("moving", "evacuate", "accepted", Step::Stand)]
#[case::on_record_by_somebody_else("moving", "evacuate", "waiting", evacuation("moving", 0, false))]
#[case::to_be_removed_now("moving", "remove", "accepted", evacuation("moving", 0, true))]
#[case::to_be_kept_now("leaving", "evacuate", "accepted", evacuation("leaving", 0, false))]
#[case::leaving("leaving", "remove", "accepted", Step::Stand)]
#[case::refused_before("plain", "remove", "refused", evacuation("plain", 0, true))]
#[case::stop("moving", "stop", "waiting", Step::Call(DiskCall::Stop(of("moving"))))]
#[case::stopped("plain", "stop", "accepted", Step::TakeOff)]
#[case::replace("gone", "replace", "waiting", Step::Call(DiskCall::Replace(of("gone"))))]
#[case::replace_what_is_there("plain", "replace", "waiting", Step::Refuse(NOT_MISSING.to_owned()))]
#[case::removed("none", "remove", "accepted", Step::TakeOff)]
#[case::replaced("none", "replace", "accepted", Step::TakeOff)]
#[case::never_there("none", "remove", "waiting", Step::Refuse(UNKNOWN.to_owned()))]
#[case::gone_without_a_wish_that_it_goes("none", "evacuate", "accepted", Step::Refuse(UNKNOWN.to_owned()))]
fn a_wish_is_asked_of_lvmd_until_that_has_it(
    #[case] uuid: &str,
    #[case] text: &str,
    #[case] state: &str,
    #[case] expected: Step,
) {
    assert_eq!(step(Wish::Of(uuid, text), state), expected);
}

#[rstest]
#[case::blank("ata-X", "waiting", Step::Call(DiskCall::Add(AddDiskRequest {
    path: "/dev/sde".to_owned(), stable_name: BLANK.to_owned(),
})))]
#[case::by_its_whole_name(BLANK, "waiting", Step::Call(DiskCall::Add(AddDiskRequest {
    path: "/dev/sde".to_owned(), stable_name: BLANK.to_owned(),
})))]
#[case::success_that_is_not_told_yet("ata-X", "accepted", Step::Stand)]
#[case::without_a_name("/dev/vdb", "waiting", Step::Call(DiskCall::Add(AddDiskRequest {
    path: "/dev/vdb".to_owned(), stable_name: String::new(),
})))]
#[case::path_of_one_with_a_name("/dev/sde", "waiting", Step::Refuse(NOT_THERE.to_owned()))]
#[case::member("ata-M", "waiting", Step::TakeOff)]
#[case::refusal_that_is_not_told_yet("ata-X", "refused", Step::Stand)]
fn a_disk_is_added_by_the_name_that_only_it_has(#[case] name: &str, #[case] state: &str, #[case] expected: Step) {
    assert_eq!(step(Wish::Add(name), state), expected);
}

#[test]
fn an_addition_that_has_ended_is_not_tried_again_once_that_is_told() {
    let wish = Wish::Add("ata-X");
    for end in ["accepted", "refused"].map(|state| known(wish, state)) {
        let told = NodeStorageStatus { disk_wishes: vec![end.clone()], ..NodeStorageStatus::default() };
        assert_eq!(wish.next_step(&end, &told, &reading()), Step::TakeOff);
    }
}

#[test]
fn refused_replacement_is_not_tried_again_once_that_is_reported() {
    let wish = Wish::Of("gone", "replace");
    let refused = known(wish, "refused");
    assert_eq!(step(wish, "refused"), Step::Stand);
    let told = NodeStorageStatus { disk_wishes: vec![refused.clone()], ..NodeStorageStatus::default() };
    assert_eq!(wish.next_step(&refused, &told, &reading()), Step::TakeOff);
}

#[test]
fn a_removal_stands_until_the_object_says_that_the_disk_is_gone() {
    let wish = Wish::Of("left", "remove");
    let mut told = reading().status.unwrap();
    told.volume_groups[0].physical_volumes[0].uuid = "left".to_owned();
    assert_eq!(wish.next_step(&known(wish, "accepted"), &told, &reading()), Step::Stand);
    assert_eq!(wish.next_step(&known(wish, "accepted"), &reading().status.unwrap(), &reading()), Step::TakeOff);
}

#[test]
fn while_lvmd_or_lvm_does_not_say_what_there_is_nothing_is_concluded() {
    let wish = Wish::Of("none", "remove");
    let accepted = known(wish, "accepted");
    let away = Reading { is_connected: false, ..reading() };
    assert_eq!(wish.next_step(&accepted, &NodeStorageStatus::default(), &away), Step::Wait(SILENT));
    assert_eq!(wish.next_step(&accepted, &NodeStorageStatus::default(), &Reading::default()), Step::Wait(SILENT));
    for (uuid, stale) in [("", ""), ("g", "LVM hangs")] {
        let mut uncertain = reading();
        let group = &mut uncertain.status.as_mut().unwrap().volume_groups[0];
        (group.uuid, group.stale_reason) = (uuid.to_owned(), stale.to_owned());
        assert_eq!(wish.next_step(&accepted, &NodeStorageStatus::default(), &uncertain), Step::Wait(UNCERTAIN));
    }
    let blind = Reading { knows_disks: false, ..reading() };
    let wish = Wish::Add("ata-X");
    assert_eq!(wish.next_step(&known(wish, "waiting"), &NodeStorageStatus::default(), &blind), Step::Wait(SILENT));
}

#[test]
fn what_is_no_wish_is_refused_with_the_words_that_are_wishes() {
    let refused = step(Wish::Of("plain", "add"), "waiting");
    let words = "write evacuate, remove, replace or stop";
    assert!(matches!(&refused, Step::Refuse(why) if why.contains(words)), "{refused:?}");
}
