//! Snapshots of several volumes at one moment: all or none.

use rstest::rstest;
use tonic::{Code, Status};
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, CreateLvSnapshotsRequest, LogicalVolume};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{GIB, MANAGED, Node, code, snapshot_request};

/// A node with the thin volumes `a` and `b` of 1 GiB.
async fn node() -> Node {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.create("thin", "b", GIB).await.unwrap();
    node
}

fn of(name: &str, source: &str) -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest { access_type: "ro".to_owned(), source_volume: source.to_owned(), ..snapshot_request(name) }
}

async fn request(node: &Node, snapshots: Vec<CreateLvSnapshotRequest>) -> Result<Vec<LogicalVolume>, Status> {
    let request = CreateLvSnapshotsRequest { snapshots };
    Ok(node.lv.clone().create_lv_snapshots(request).await?.into_inner().snapshots)
}

fn both() -> Vec<CreateLvSnapshotRequest> {
    vec![of("s", "a"), of("t", "b")]
}

fn assert_none(node: &Node) {
    assert!(["s", "t"].iter().all(|name| node.lvm.volume("vg", name).is_none()));
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_one_moment_are_read_only_and_made_once() {
    let node = node().await;
    let made = request(&node, both()).await.unwrap();
    let shown: Vec<_> = made.iter().map(|snapshot| (snapshot.name.as_str(), snapshot.attr.as_str())).collect();
    assert_eq!(shown, [("s", "Vri-a-tz--"), ("t", "Vri-a-tz--")]);
    assert_eq!(made[1].tags, [MANAGED, "topolvm.io/source=b"]);
    assert_eq!(request(&node, both()).await.unwrap(), made, "again is success");
    assert_eq!(node.lvm.count("lvcreate"), 4);
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_one_moment_leave_nothing_when_one_fails() {
    let node = node().await;
    node.lvm.fail("lvcreate", 2, Fault::says("device-mapper: message ioctl failed"));
    let status = request(&node, both()).await.unwrap_err();
    assert!(status.message().contains("message ioctl failed"), "{status}");
    assert_none(&node);
    assert_eq!(request(&node, both()).await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_one_moment_need_space_for_all() {
    let node = node().await;
    node.resize("thin", "a", 3 << 30).await.unwrap();
    // 2 GiB are left, and each of them would fit alone
    assert_eq!(code(request(&node, vec![of("s", "b"), of("t", "a")]).await), Code::ResourceExhausted);
    assert_none(&node);
}

#[tokio::test(start_paused = true)]
async fn snapshot_group_that_is_incomplete_is_not_completed() {
    let node = node().await;
    request(&node, both()).await.unwrap();
    node.remove("thin", "t").await.unwrap();
    let status = request(&node, both()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("snapshot vg/t does not exist, and vg/s"), "{status}");
    assert!(node.lvm.volume("vg", "s").is_some() && node.lvm.volume("vg", "t").is_none());
}

#[tokio::test(start_paused = true)]
async fn snapshots_of_one_moment_need_one_volume_group() {
    let node = node().await;
    node.lvm.add_group("vg2", 10 * GIB, 1);
    node.lvm.add_volume("vg2", "c", FakeVolume::thick(GIB));
    let status = request(&node, vec![of("s", "a"), of("t", "c")]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("logical volume c is not in volume group vg"), "{status}");
    assert_none(&node);
}

#[rstest]
#[case::none(Vec::new())]
#[case::too_many((0..33).map(|number| of(&format!("s{number}"), &format!("a{number}"))).collect())]
#[case::same_source(vec![of("s", "a"), of("t", "a")])]
#[case::same_name(vec![of("s", "a"), of("s", "b")])]
#[case::writable(vec![of("s", "a"), CreateLvSnapshotRequest { access_type: "rw".to_owned(), ..of("t", "b") }])]
#[case::larger(vec![of("s", "a"), CreateLvSnapshotRequest { size_bytes: 2 << 30, ..of("t", "b") }])]
#[tokio::test(start_paused = true)]
async fn impossible_snapshot_groups_never_reach_lvm(#[case] snapshots: Vec<CreateLvSnapshotRequest>) {
    let node = node().await;
    let before = node.lvm.commands().len();
    assert_eq!(code(request(&node, snapshots).await), Code::InvalidArgument);
    assert_eq!(node.lvm.commands().len(), before);
}
