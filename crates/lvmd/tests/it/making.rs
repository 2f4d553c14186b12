//! Volumes that a crash left half made are recognised, never given to anybody, and removed.

use std::time::Duration;

use rstest::rstest;
use tokio::time::timeout;
use tonic::Code;
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, Empty};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{CONFIG, GIB, MAKING, MANAGED, Node, THIN_CONFIG, code, snapshot_request};

fn half_made(volume: FakeVolume) -> FakeVolume {
    FakeVolume { tags: vec![MANAGED.to_owned(), MAKING.to_owned()], ..volume }
}

/// Waits until the volume is gone, as seen by the next one in turn and by watchers.
async fn wait_until_gone(node: &Node, vg: &str, name: &str) {
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    while node.lvm.volume(vg, name).is_some() {
        timeout(Duration::from_mins(1), watch.message()).await.expect("it stays").unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_volume_is_marked_until_it_is_ready() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.after("lvcreate", move |_| {
        assert_eq!(lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED, MAKING]);
    });
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED]);
}

#[tokio::test]
async fn creating_costs_two_changes_and_two_reports() {
    let node = Node::start().await;
    let before = node.lvm.commands().len();
    node.create("ssd", "a", GIB).await.unwrap();
    let commands = node.lvm.commands();
    let names: Vec<_> = commands[before..].iter().filter_map(|command| command.split(' ').next()).take(4).collect();
    assert_eq!(names, ["fullreport", "lvcreate", "lvchange", "fullreport"]);
}

#[rstest]
#[case::thick("thick", FakeVolume::thick(GIB))]
#[case::thin("thin", FakeVolume::thin(GIB, "pool"))]
#[tokio::test]
async fn a_half_made_volume_is_made_anew_and_not_taken_as_it_is(#[case] class: &str, #[case] volume: FakeVolume) {
    let node = Node::start_thin().await;
    node.lvm.add_volume("vg", "a", half_made(volume));
    let old = node.lvm.volume("vg", "a").unwrap().minor;
    assert_eq!(node.list(class).await.unwrap(), [], "it is not there for anybody");
    node.create(class, "a", GIB).await.unwrap();
    let made = node.lvm.volume("vg", "a").unwrap();
    assert_ne!(made.minor, old);
    assert_eq!(made.tags, [MANAGED]);
}

#[tokio::test]
async fn a_half_made_volume_makes_room_for_itself() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", half_made(FakeVolume::thick(9 * GIB)));
    node.create("ssd", "a", 9 * GIB).await.unwrap();
}

#[tokio::test]
async fn a_half_made_snapshot_is_made_anew_and_not_taken_as_it_is() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    // It looks right in everything but the mark.
    let volume = FakeVolume { origin: Some("a".to_owned()), ..FakeVolume::thin(GIB, "pool") };
    node.lvm.add_volume("vg", "s", half_made(volume));
    let old = node.lvm.volume("vg", "s").unwrap().minor;
    node.snapshot(snapshot_request("s")).await.unwrap();
    assert_ne!(node.lvm.volume("vg", "s").unwrap().minor, old);
}

#[tokio::test]
async fn a_half_made_volume_can_be_removed_and_nothing_else() {
    let node = Node::start_thin().await;
    node.lvm.add_volume("vg", "a", half_made(FakeVolume::thin(GIB, "pool")));
    assert_eq!(code(node.resize("thin", "a", 2 << 30).await), Code::FailedPrecondition);
    assert_eq!(code(node.snapshot(snapshot_request("s")).await), Code::FailedPrecondition);
    node.remove("thin", "a").await.unwrap();
    assert!(node.lvm.volume("vg", "a").is_none());
}

/// As after a crash: the command has done its work, and nothing is done after it.
fn crash_after(node: &Node, command: &str) {
    let lvm = node.lvm.clone();
    node.lvm.after(command, move |_| {
        for command in ["fullreport", "lvchange", "lvcreate", "lvremove", "lvresize"] {
            lvm.break_down(command, Fault::Spawn);
        }
    });
}

fn larger_snapshot() -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest { size_bytes: 2 << 30, ..snapshot_request("s") }
}

#[rstest]
#[case::begun("lvcreate")]
#[case::grown("lvresize")]
#[tokio::test]
async fn what_a_crash_left_half_made_is_gone_after_the_next_start(#[case] command: &str) {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    crash_after(&node, command);
    code(node.snapshot(larger_snapshot()).await);
    node.lvm.heal();
    assert!(node.lvm.volume("vg", "s").unwrap().tags.iter().any(|tag| tag == MAKING));

    let next = node.restart(THIN_CONFIG).await;
    wait_until_gone(&next, "vg", "s").await;
    assert_eq!(next.free("thin").await.unwrap(), 4 * GIB);
    assert_eq!(next.snapshot(larger_snapshot()).await.unwrap().size_bytes, 2 << 30);
}

#[rstest]
#[case::begun("lvcreate")]
#[case::grown("lvresize")]
#[case::ready("lvchange")]
#[tokio::test]
async fn asking_again_after_a_crash_gives_the_whole_snapshot(#[case] command: &str) {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    crash_after(&node, command);
    code(node.snapshot(larger_snapshot()).await);
    node.lvm.heal();
    let snapshot = node.snapshot(larger_snapshot()).await.unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.attr.as_str()), (2 << 30, "Vwi-a-tz--"));
    assert_eq!(snapshot.tags, [MANAGED, "topolvm.io/source=a"]);
}

#[tokio::test]
async fn the_next_start_removes_half_made_volumes_of_every_kind_and_nothing_else() {
    let node = Node::start_thin().await;
    node.lvm.add_volume("vg", "thick", half_made(FakeVolume::thick(GIB)));
    node.lvm.add_volume("vg", "thin", half_made(FakeVolume::thin(GIB, "pool2")));
    // Marks of others are not ours.
    node.lvm.add_volume("vg", "theirs", FakeVolume { tags: vec![MAKING.to_owned()], ..FakeVolume::thick(GIB) });
    node.lvm.add_volume("vg", "ready", FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) });
    node.lvm.add_volume("vg", "plain", FakeVolume::thick(GIB));
    let next = node.restart(THIN_CONFIG).await;
    wait_until_gone(&next, "vg", "thick").await;
    wait_until_gone(&next, "vg", "thin").await;
    assert_eq!(next.lvm.volumes("vg"), ["plain", "pool", "pool2", "ready", "theirs"]);
}

/// An lvcreate lives on when lvmd is killed, and may do its work after the next lvmd has looked.
#[tokio::test(start_paused = true)]
async fn a_half_made_volume_that_appears_later_is_removed_when_it_stays_half_made() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", half_made(FakeVolume::thick(GIB)));
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    let later = tokio::time::Instant::now() + Duration::from_mins(11);
    while tokio::time::Instant::now() < later {
        drop(tokio::time::timeout_at(later, watch.message()).await);
        assert!(node.lvm.volume("vg-ssd", "a").is_some(), "somebody may be making it");
    }
    let removal = async {
        while node.lvm.volume("vg-ssd", "a").is_some() {
            watch.message().await.unwrap().unwrap();
        }
    };
    timeout(Duration::from_mins(11), removal).await.expect("it stays");
}

#[tokio::test]
async fn a_half_made_volume_that_cannot_be_removed_does_not_keep_lvmd_from_starting() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume { open: true, ..half_made(FakeVolume::thick(GIB)) });
    node.lvm.add_volume("vg-ssd", "b", half_made(FakeVolume::thick(GIB)));
    let next = node.restart(CONFIG).await;
    wait_until_gone(&next, "vg-ssd", "b").await;
    assert_eq!(next.lvm.volumes("vg-ssd"), ["a"]);
    assert_eq!(code(next.create("ssd", "a", GIB).await), Code::FailedPrecondition);
    assert!(next.lvm.volume("vg-ssd", "a").is_some());
}

#[tokio::test]
async fn a_half_made_volume_with_snapshots_is_left_to_the_administrator() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", half_made(FakeVolume::thick(GIB)));
    node.lvm.add_volume("vg-ssd", "backup", FakeVolume::snapshot(GIB, "a"));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "backup"]);
}

#[tokio::test]
async fn a_volume_that_cannot_be_made_ready_is_not_left_behind() {
    let node = Node::start().await;
    node.lvm.fail("lvchange", 1, Fault::says("Failed to write VG vg-ssd."));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    node.create("ssd", "a", GIB).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_vanishes_while_it_is_made_is_not_reported_as_proven_absent() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.after("lvcreate", move |_| lvm.lose_volume("vg-ssd", "a"));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
}

#[tokio::test]
async fn after_a_time_out_the_next_attempt_makes_the_volume_anew() {
    let node = Node::start().await;
    node.lvm.fail_after_success("lvcreate", 1, Fault::Timeout);
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::DeadlineExceeded);
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!((node.lvm.count("lvcreate"), node.lvm.count("lvremove")), (2, 1));
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED]);
}
