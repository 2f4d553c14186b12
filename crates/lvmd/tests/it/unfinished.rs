//! Volumes that a crash left unfinished are recognised, never returned to a caller, and removed.

use std::time::Duration;

use rstest::rstest;
use tokio::time::{sleep, timeout};
use tonic::Code;
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, Empty};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{CONFIG, GIB, MAKING, MANAGED, Node, OTHER_MAKING, THIN_CONFIG, code, snapshot_request};

/// Between two refreshes although nothing seems to have changed.
const REFRESH_INTERVAL: Duration = Duration::from_mins(10);

fn unfinished(volume: FakeVolume) -> FakeVolume {
    FakeVolume { tags: vec![MANAGED.to_owned(), MAKING.to_owned()], ..volume }
}

fn unfinished_by_another(volume: FakeVolume) -> FakeVolume {
    FakeVolume { tags: vec![MANAGED.to_owned(), OTHER_MAKING.to_owned()], ..volume }
}

fn is_making_tag(tag: &str) -> bool {
    tag.starts_with("topolvm.io/making=/run/topolvm/lvmd.sock#")
}

/// Waits until the volume is gone, as seen by the next one in turn and by watchers.
async fn wait_until_gone(node: &Node, vg: &str, name: &str) {
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    while node.lvm.volume(vg, name).is_some() {
        timeout(Duration::from_mins(1), watch.message()).await.expect("it stays").unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_has_the_making_tag_until_it_is_ready() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.after("lvcreate", move |_| {
        let tags = lvm.volume("vg-ssd", "a").unwrap().tags;
        assert!(tags.len() == 2 && tags[0] == MANAGED && is_making_tag(&tags[1]), "{tags:?}");
    });
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED]);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_its_own_making_tag() {
    let node = Node::start().await;
    for _ in 0..2 {
        node.create("ssd", "a", GIB).await.unwrap();
        node.remove("ssd", "a").await.unwrap();
    }
    let commands = node.lvm.commands();
    let mut untagged: Vec<_> = commands.iter().filter(|command| command.starts_with("lvchange")).collect();
    untagged.dedup();
    assert_eq!(untagged.len(), 2, "{untagged:?}");
}

#[tokio::test(start_paused = true)]
async fn creating_costs_one_process() {
    let node = Node::start().await;
    let (before, processes) = (node.lvm.commands().len(), node.lvm.processes());
    node.create("ssd", "a", GIB).await.unwrap();
    let commands = node.lvm.commands();
    let names: Vec<_> = commands[before..].iter().filter_map(|command| command.split(' ').next()).collect();
    assert_eq!(names, ["lvcreate", "lvchange", "fullreport"]);
    assert_eq!(node.lvm.processes() - processes, 1);
}

#[rstest]
#[case::thick("thick", FakeVolume::thick(GIB))]
#[case::thin("thin", FakeVolume::thin(GIB, "pool"))]
#[tokio::test(start_paused = true)]
async fn unfinished_volume_is_recreated_and_not_used(#[case] class: &str, #[case] volume: FakeVolume) {
    let node = Node::start_thin().await;
    node.notice().await;
    node.lvm.add_volume("vg", "a", unfinished(volume));
    node.notice().await;
    let old = node.lvm.volume("vg", "a").unwrap().minor;
    assert_eq!(node.list(class).await.unwrap(), [], "it is not listed");
    node.create(class, "a", GIB).await.unwrap();
    let made = node.lvm.volume("vg", "a").unwrap();
    assert_ne!(made.minor, old);
    assert_eq!(made.tags, [MANAGED]);
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_volume_frees_its_own_space() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", unfinished(FakeVolume::thick(9 * GIB)));
    let old = node.lvm.volume("vg-ssd", "a").unwrap().minor;
    node.create("ssd", "a", 9 * GIB).await.unwrap();
    assert_ne!(node.lvm.volume("vg-ssd", "a").unwrap().minor, old);
    assert_eq!(node.lvm.free("vg-ssd"), GIB);
}

#[tokio::test(start_paused = true)]
async fn unfinished_snapshot_is_recreated_and_not_used() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    // It looks right in everything but the making tag.
    let volume = FakeVolume { origin: Some("a".to_owned()), ..FakeVolume::thin(GIB, "pool") };
    node.lvm.add_volume("vg", "s", unfinished(volume));
    let old = node.lvm.volume("vg", "s").unwrap().minor;
    node.snapshot(snapshot_request("s")).await.unwrap();
    assert_ne!(node.lvm.volume("vg", "s").unwrap().minor, old);
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_volume_can_be_removed_and_nothing_else() {
    let node = Node::start_thin().await;
    // The look at the start is over.
    node.notice().await;
    node.lvm.add_volume("vg", "a", unfinished(FakeVolume::thin(GIB, "pool")));
    assert_eq!(code(node.resize("thin", "a", 2 << 30).await), Code::FailedPrecondition);
    assert_eq!(code(node.snapshot(snapshot_request("s")).await), Code::FailedPrecondition);
    node.remove("thin", "a").await.unwrap();
    assert!(node.lvm.volume("vg", "a").is_none());
}

/// As after a crash: the command has done its work, and nothing is done after it.
fn crash_after(node: &Node, command: &str) {
    let lvm = node.lvm.clone();
    node.lvm.after(command, move |_| {
        for command in ["fullreport", "lvchange", "lvcreate", "lvremove", "lvextend"] {
            lvm.fail_always(command, Fault::Spawn);
        }
    });
}

fn larger_snapshot() -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest { size_bytes: 2 << 30, ..snapshot_request("s") }
}

#[rstest]
#[case::begun("lvcreate")]
#[case::grown("lvextend")]
#[tokio::test(start_paused = true)]
async fn what_a_crash_left_unfinished_is_gone_after_the_next_start(#[case] command: &str) {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    crash_after(&node, command);
    code(node.snapshot(larger_snapshot()).await);
    node.lvm.clear_faults();
    assert!(node.lvm.volume("vg", "s").unwrap().tags.iter().any(|tag| is_making_tag(tag)));

    let next = node.restart(THIN_CONFIG).await;
    wait_until_gone(&next, "vg", "s").await;
    assert_eq!(next.free("thin").await.unwrap(), 4 * GIB);
    assert_eq!(next.snapshot(larger_snapshot()).await.unwrap().size_bytes, 2 << 30);
}

#[rstest]
#[case::begun("lvcreate")]
#[case::grown("lvextend")]
#[case::ready("lvchange")]
#[tokio::test(start_paused = true)]
async fn asking_again_after_a_crash_gives_the_whole_snapshot(#[case] command: &str) {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    crash_after(&node, command);
    code(node.snapshot(larger_snapshot()).await);
    node.lvm.clear_faults();
    let snapshot = node.snapshot(larger_snapshot()).await.unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.attr.as_str()), (2 << 30, "Vwi-a-tz--"));
    assert_eq!(snapshot.tags, [MANAGED, "topolvm.io/source=a"]);
}

#[tokio::test(start_paused = true)]
async fn unfinished_volumes_and_no_others_are_removed_at_start() {
    let node = Node::start_thin().await;
    node.lvm.add_volume("vg", "thick", unfinished(FakeVolume::thick(GIB)));
    node.lvm.add_volume("vg", "thin", unfinished(FakeVolume::thin(GIB, "pool2")));
    // Marks of others are not ours.
    node.lvm.add_volume("vg", "theirs", FakeVolume { tags: vec![MAKING.to_owned()], ..FakeVolume::thick(GIB) });
    node.lvm.add_volume("vg", "other", unfinished_by_another(FakeVolume::thick(GIB)));
    node.lvm.add_volume("vg", "ready", FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) });
    node.lvm.add_volume("vg", "plain", FakeVolume::thick(GIB));
    let next = node.restart(THIN_CONFIG).await;
    wait_until_gone(&next, "vg", "thick").await;
    wait_until_gone(&next, "vg", "thin").await;
    assert_eq!(next.lvm.volumes("vg"), ["other", "plain", "pool", "pool2", "ready", "theirs"]);
}

/// An lvcreate lives on when lvmd is killed, and may do its work after the next lvmd has looked.
#[tokio::test(start_paused = true)]
async fn unfinished_volume_that_appears_late_is_removed_in_10_minutes() {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.add_volume("vg-ssd", "a", unfinished(FakeVolume::thick(GIB)));
    node.notice().await;
    assert_eq!(node.list("ssd").await.unwrap(), []);
    assert!(node.lvm.volume("vg-ssd", "a").is_some());
    sleep(REFRESH_INTERVAL).await;
    assert!(node.lvm.volume("vg-ssd", "a").is_none());
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn what_another_lvmd_is_making_is_left_alone() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", unfinished_by_another(FakeVolume::thick(GIB)));
    let next = node.restart(CONFIG).await;
    next.notice().await;
    assert_eq!(next.list("ssd").await.unwrap(), []);
    assert_eq!(next.free("ssd").await.unwrap(), 8 * GIB, "its room is taken all the same");
    let status = next.create("ssd", "a", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().starts_with("logical volume vg-ssd/a is being created by another lvmd; try again"),
        "{status}"
    );
    assert_eq!(code(next.resize("ssd", "a", 2 << 30).await), Code::FailedPrecondition);
    assert!(next.lvm.volume("vg-ssd", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_another_lvmd_was_making_for_twenty_minutes_is_removed() {
    let node = Node::start().await;
    // Between the looks at 0 and at 10 minutes.
    sleep(REFRESH_INTERVAL / 2).await;
    node.lvm.add_volume("vg-ssd", "a", unfinished_by_another(FakeVolume::thick(GIB)));
    for sweep in 1..=2 {
        sleep(REFRESH_INTERVAL).await;
        assert!(node.lvm.volume("vg-ssd", "a").is_some(), "it was seen unfinished by {sweep} sweeps only");
    }
    sleep(REFRESH_INTERVAL).await;
    assert!(node.lvm.volume("vg-ssd", "a").is_none());
    node.create("ssd", "a", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_another_lvmd_makes_ready_in_time_is_not_removed() {
    let node = Node::start_thin().await;
    sleep(REFRESH_INTERVAL / 2).await;
    node.lvm.add_volume("vg", "a", unfinished_by_another(FakeVolume::thick(GIB)));
    sleep(REFRESH_INTERVAL).await;
    node.lvm.edit_volume("vg", "a", |volume| volume.tags.retain(|tag| tag != OTHER_MAKING));
    node.lvm.add_volume("vg", "b", FakeVolume::thick(GIB));
    sleep(2 * REFRESH_INTERVAL).await;
    assert!(node.lvm.volume("vg", "a").is_some(), "it became ready");
}

#[tokio::test(start_paused = true)]
async fn unfinished_volume_in_use_does_not_block_the_start() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume { open: true, ..unfinished(FakeVolume::thick(GIB)) });
    node.lvm.add_volume("vg-ssd", "b", unfinished(FakeVolume::thick(GIB)));
    let next = node.restart(CONFIG).await;
    wait_until_gone(&next, "vg-ssd", "b").await;
    assert_eq!(next.lvm.volumes("vg-ssd"), ["a"]);
    assert_eq!(code(next.create("ssd", "a", GIB).await), Code::FailedPrecondition);
    assert!(next.lvm.volume("vg-ssd", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn unfinished_volume_with_snapshots_is_not_removed() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", unfinished(FakeVolume::thick(GIB)));
    node.lvm.add_volume("vg-ssd", "backup", FakeVolume::snapshot(GIB, "a"));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "backup"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_be_made_ready_is_not_left_behind() {
    let node = Node::start().await;
    node.lvm.fail("lvchange", 1, Fault::says("Failed to write VG vg-ssd."));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    node.create("ssd", "a", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn volume_that_vanishes_during_creation_is_an_internal_error() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.after("lvcreate", move |_| lvm.remove_volume("vg-ssd", "a"));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
}

#[tokio::test(start_paused = true)]
async fn volume_is_recreated_by_the_attempt_after_a_timeout() {
    let node = Node::start().await;
    node.lvm.fail_after_success("lvcreate", 1, Fault::Timeout);
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::DeadlineExceeded);
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!((node.lvm.count("lvcreate"), node.lvm.count("lvremove")), (2, 1));
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED]);
}

#[tokio::test(start_paused = true)]
async fn volume_that_cannot_be_wiped_is_removed_without_a_making_tag() {
    let node = Node::start().await;
    node.lvm.fail_after_success("lvcreate", 1, Fault::says("Aborting. Failed to wipe start of new LV."));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
}

/// LVM suspends the source of a snapshot for a moment. If it were killed then, users of the source would wait
/// forever.
#[rstest]
#[case::at_the_next_start(true)]
#[case::when_lvm_is_asked_next(false)]
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_left_suspended_goes_on(#[case] restarts: bool) {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.notice().await;
    let suspend = |name: &str| node.lvm.edit_volume("vg", name, |volume| volume.attr.replace_range(4..5, "s"));
    suspend("a");
    node.lvm.add_volume("vg", "theirs", FakeVolume::thick(GIB));
    suspend("theirs");
    let node = if restarts { node.restart(THIN_CONFIG).await } else { node };
    node.notice().await;
    assert_eq!(&node.lvm.volume("vg", "a").unwrap().attr[4..5], "a");
    assert_eq!(&node.lvm.volume("vg", "theirs").unwrap().attr[4..5], "s", "the reason is not known");
}

/// The one before us is about to say that a volume is ready, while we, started on the same socket, are about to remove
/// it.
#[rstest]
#[case::at_the_start(true)]
#[case::when_it_is_asked_for(false)]
#[tokio::test(start_paused = true)]
async fn a_volume_that_becomes_ready_just_before_it_is_removed_stays(#[case] at_the_start: bool) {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.add_volume("vg-ssd", "a", unfinished(FakeVolume::thick(GIB)));
    let made = node.lvm.volume("vg-ssd", "a").unwrap().uuid;
    let lvm = node.lvm.clone();
    node.lvm.before("lvremove", move |_| {
        lvm.edit_volume("vg-ssd", "a", |volume| volume.tags.retain(|tag| tag != MAKING));
    });
    let node = if at_the_start { node.restart(CONFIG).await } else { node };
    node.notice().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let there = node.lvm.volume("vg-ssd", "a").unwrap();
    assert_eq!((there.uuid, there.tags), (made, vec![MANAGED.to_owned()]));
    assert_eq!(node.lvm.count("lvcreate"), 0);
}

/// The reverse: another lvmd has removed the volume and is recreating it when this lvmd would report it as ready.
#[tokio::test(start_paused = true)]
async fn volume_recreated_by_another_lvmd_is_not_reported_as_created() {
    let node = Node::start().await;
    // The look at the start is over.
    node.notice().await;
    let lvm = node.lvm.clone();
    node.lvm.after("lvcreate", move |_| {
        lvm.remove_volume("vg-ssd", "a");
        lvm.add_volume("vg-ssd", "a", unfinished(FakeVolume::thick(GIB)));
    });
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Unavailable);
    assert!(node.lvm.volume("vg-ssd", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn volume_of_another_lvmd_survives_a_failed_creation() {
    let node = Node::start().await;
    node.lvm.fail("lvcreate", 1, Fault::says("Insufficient free space: 6 extents needed, but only 4 available"));
    let lvm = node.lvm.clone();
    node.lvm.before("lvchange", move |_| {
        let volume = FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) };
        lvm.add_volume("vg-ssd", "a", volume);
    });
    node.create("ssd", "a", GIB).await.unwrap_err();
    node.lvm.clear_faults();
    assert!(node.lvm.volume("vg-ssd", "a").is_some());
}
