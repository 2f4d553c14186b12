//! Snapshots of thin volumes, and volumes restored from them.

use rstest::rstest;
use tonic::Code;
use topolvm_proto::lvmd::CreateLvSnapshotRequest;
use topolvm_testkit::lvm::{EXTENT, FakeVolume, Fault};

use crate::node::{GIB, MANAGED, Node, code, snapshot_request};

/// A node with the thin volume `a` of 1 GiB.
async fn node() -> Node {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node
}

fn signed(bytes: u64) -> i64 {
    bytes.try_into().unwrap()
}

fn read_only(name: &str) -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest { access_type: "ro".to_owned(), ..snapshot_request(name) }
}

fn sized(name: &str, bytes: u64) -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest { size_bytes: signed(bytes), ..snapshot_request(name) }
}

#[tokio::test(start_paused = true)]
async fn snapshot_is_as_large_as_its_source_by_default() {
    let node = node().await;
    let snapshot =
        node.snapshot(CreateLvSnapshotRequest { tags: vec!["t".to_owned()], ..read_only("s") }).await.unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.attr.as_str()), (signed(GIB), "Vri-a-tz--"));
    assert_eq!(snapshot.tags, ["t", MANAGED, "topolvm.io/source=a"]);
    assert!(snapshot.dev_major > 0);
    let made = node.lvm.volume("vg", "s").unwrap();
    assert_eq!((made.origin.as_deref(), made.pool.as_deref()), (Some("a"), Some("pool")));
    assert_eq!(node.free("thin").await.unwrap(), 3 * GIB, "it counts in full");
}

#[tokio::test(start_paused = true)]
async fn restored_volume_is_writable_and_may_be_larger_than_snapshot() {
    let node = node().await;
    node.snapshot(read_only("s")).await.unwrap();
    let wanted = CreateLvSnapshotRequest { source_volume: "s".to_owned(), ..sized("restored", GIB + 1) };
    let restored = node.snapshot(wanted).await.unwrap();
    assert_eq!((restored.size_bytes, restored.attr.as_str()), (signed(GIB + EXTENT), "Vwi-a-tz--"));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_never_smaller_than_its_source() {
    let node = node().await;
    let status = node.snapshot(sized("s", GIB - 4096)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(status.message(), "requested size 1073737728 is smaller than the size of the source, 1073741824");
    assert!(node.lvm.volume("vg", "s").is_none());
}

#[tokio::test(start_paused = true)]
async fn snapshot_reserves_its_full_size_of_the_pool_capacity() {
    let node = node().await;
    assert_eq!(code(node.snapshot(sized("s", 4 * GIB + 1)).await), Code::ResourceExhausted);
    node.snapshot(sized("s", 4 * GIB)).await.unwrap();
    assert_eq!(node.free("thin").await.unwrap(), 0);
    assert_eq!(code(node.snapshot(snapshot_request("s2")).await), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_missing_source_is_not_found() {
    let node = node().await;
    let wanted = CreateLvSnapshotRequest { source_volume: "b".to_owned(), ..snapshot_request("s") };
    let status = node.snapshot(wanted).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "logical volume vg/b not found"));
}

#[tokio::test(start_paused = true)]
async fn thick_volumes_and_thick_classes_have_no_snapshots() {
    let node = node().await;
    node.create("thick", "b", GIB).await.unwrap();
    let of_thick = CreateLvSnapshotRequest { source_volume: "b".to_owned(), ..snapshot_request("s") };
    assert_eq!(code(node.snapshot(of_thick.clone()).await), Code::Unimplemented);
    let in_thick = CreateLvSnapshotRequest { device_class: "thick".to_owned(), ..of_thick };
    assert_eq!(code(node.snapshot(in_thick).await), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn a_source_in_the_pool_of_another_class_is_not_touched() {
    let node = node().await;
    let wanted = CreateLvSnapshotRequest { device_class: "other".to_owned(), ..snapshot_request("s") };
    assert_eq!(code(node.snapshot(wanted).await), Code::FailedPrecondition);
    assert!(node.lvm.volume("vg", "s").is_none());
}

#[rstest]
#[case::access(CreateLvSnapshotRequest { access_type: "wo".to_owned(), ..snapshot_request("s") })]
#[case::no_access(CreateLvSnapshotRequest { access_type: String::new(), ..snapshot_request("s") })]
#[case::size(CreateLvSnapshotRequest { size_bytes: -1, ..snapshot_request("s") })]
#[case::name(snapshot_request("-s"))]
#[case::source(CreateLvSnapshotRequest { source_volume: "--all".to_owned(), ..snapshot_request("s") })]
#[case::tag(CreateLvSnapshotRequest { tags: vec!["a,b".to_owned()], ..snapshot_request("s") })]
#[case::our_tag(CreateLvSnapshotRequest { tags: vec!["topolvm.io/source=b".to_owned()], ..snapshot_request("s") })]
#[tokio::test(start_paused = true)]
async fn impossible_requests_never_reach_lvm(#[case] request: CreateLvSnapshotRequest) {
    let node = node().await;
    let before = node.lvm.commands().len();
    assert_eq!(code(node.snapshot(request).await), Code::InvalidArgument);
    assert_eq!(node.lvm.commands().len(), before);
}

#[tokio::test(start_paused = true)]
async fn asking_again_for_the_same_snapshot_is_success() {
    let node = node().await;
    let first = node.snapshot(read_only("s")).await.unwrap();
    assert_eq!(node.snapshot(read_only("s")).await.unwrap(), first);
    node.remove("thin", "a").await.unwrap();
    assert_eq!(node.snapshot(read_only("s")).await.unwrap(), first, "also when its source has gone since");
    let count = node.lvm.commands().iter().filter(|command| command.starts_with("lvcreate -s")).count();
    assert_eq!(count, 1);
}

#[tokio::test(start_paused = true)]
async fn another_volume_of_that_name_is_in_the_way() {
    let node = node().await;
    node.create("thin", "b", GIB).await.unwrap();
    node.snapshot(read_only("s")).await.unwrap();
    let message = |wanted| {
        let node = &node;
        async move {
            let status = node.snapshot(wanted).await.unwrap_err();
            assert_eq!(status.code(), Code::AlreadyExists);
            status.message().replace("logical volume vg/", "").replace(" already exists and ", ": ")
        }
    };
    assert_eq!(message(snapshot_request("b")).await, "b: is no snapshot of a");
    assert_eq!(message(snapshot_request("s")).await, "s: is read-only");
    let larger = CreateLvSnapshotRequest { access_type: "ro".to_owned(), ..sized("s", 2 * GIB) };
    assert_eq!(message(larger).await, "s: has only 1073741824 bytes");
    let status = node.create("thin", "s", GIB).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::AlreadyExists, "logical volume vg/s already exists and is a snapshot")
    );
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_topolvm_made_is_taken_as_it_is() {
    let node = node().await;
    let made =
        FakeVolume { origin: Some("a".to_owned()), attr: "Vri-a-tz--".to_owned(), ..FakeVolume::thin(GIB, "pool") };
    node.lvm.add_volume("vg", "s", made);
    assert_eq!(node.snapshot(read_only("s")).await.unwrap().tags, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_grown_is_not_left_behind() {
    let node = node().await;
    node.lvm.fail("lvextend", 1, Fault::says("device-mapper: reload ioctl failed"));
    let status = node.snapshot(sized("s", 2 * GIB)).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("reload ioctl failed"), "{status}");
    assert!(node.lvm.volume("vg", "s").is_none());
    assert_eq!(node.snapshot(sized("s", 2 * GIB)).await.unwrap().size_bytes, signed(2 * GIB));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_costs_one_process_and_two_when_it_is_larger() {
    let node = node().await;
    let before = node.lvm.processes();
    node.snapshot(read_only("s")).await.unwrap();
    assert_eq!(node.lvm.processes() - before, 1);
    node.snapshot(sized("t", 2 * GIB)).await.unwrap();
    assert_eq!(node.lvm.processes() - before, 3);
}
