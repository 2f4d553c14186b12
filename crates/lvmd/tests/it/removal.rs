//! Removing volumes.

use rstest::rstest;
use tonic::Code;
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{GIB, Node, code};

#[tokio::test(start_paused = true)]
async fn removing_gives_the_space_back() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn not_found_means_that_the_group_was_listed_without_the_volume() {
    let node = Node::start().await;
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    assert_eq!(code(node.resize("ssd", "a", 1).await), Code::NotFound);
}

#[rstest]
#[case::unreadable(Fault::says("Failed to read metadata of vg-ssd"))]
#[case::exported(Fault::says("Volume group \"vg-ssd\" is exported"))]
#[case::hanging(Fault::Timeout)]
#[case::not_startable(Fault::Spawn)]
#[case::garbled(Fault::Garbled)]
#[case::not_found_with_another_status(Fault::Exit(3, "  Failed to find logical volume \"vg-ssd/a\"".to_owned()))]
#[tokio::test(start_paused = true)]
async fn a_failing_lvm_never_looks_like_a_volume_that_is_gone(
    #[case] fault: Fault,
    #[values(true, false)] disks_can_be_read: bool,
) {
    let node = Node::start().await;
    // Otherwise the disks would prove it.
    if disks_can_be_read {
        node.lvm.add_volume("vg-ssd", "b", FakeVolume::thick(GIB));
    } else {
        node.lvm.hide_metadata("vg-ssd", true);
    }
    node.lvm.fail_always("fullreport", fault);
    for code in [code(node.remove("ssd", "a").await), code(node.resize("ssd", "a", 1).await)] {
        assert!(matches!(code, Code::Internal | Code::DeadlineExceeded | Code::FailedPrecondition), "{code:?}");
    }
}

#[rstest]
#[case::failing(Fault::says("Failed to read metadata of vg-ssd"))]
#[case::exported(Fault::says("Volume group \"vg-ssd\" is exported"))]
#[case::hanging(Fault::Timeout)]
#[case::garbled(Fault::Garbled)]
#[tokio::test(start_paused = true)]
async fn failed_report_after_lvremove_is_not_taken_for_an_absent_lv(#[case] fault: Fault) {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.fail("lvremove", 1, Fault::says("device-mapper: remove ioctl failed"));
    node.lvm.fail("fullreport", 1, fault);
    let code = code(node.remove("ssd", "a").await);
    assert!(matches!(code, Code::Internal | Code::DeadlineExceeded | Code::FailedPrecondition), "{code:?}");
    node.remove("ssd", "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unchanged_disks_prove_a_volume_absent_while_lvm_fails() {
    let node = Node::start().await;
    node.lvm.fail_always("fullreport", Fault::Timeout);
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    assert_eq!(node.lvm.count("fullreport"), 1, "the start's");
}

#[tokio::test(start_paused = true)]
async fn a_missing_group_never_looks_like_a_volume_that_is_gone() {
    let node = Node::start().await;
    node.lvm.remove_group("vg-ssd");
    let status = node.remove("ssd", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "volume group vg-ssd not found; check that its disks are attached");
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::FailedPrecondition);
    assert_eq!(code(node.resize("ssd", "a", 1).await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_is_not_removed() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.open = true);
    let status = node.remove("ssd", "a").await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, "lvremove: Logical volume vg-ssd/a in use.")
    );
}

#[tokio::test(start_paused = true)]
async fn a_thin_pool_is_not_removed_with_everything_in_it() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "pool", FakeVolume::thin_pool(2 * GIB));
    node.lvm.add_volume("vg-ssd", "thin", FakeVolume::thin(GIB, "pool"));
    assert_eq!(code(node.remove("ssd", "pool").await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volumes("vg-ssd"), ["pool", "thin"]);
}

#[tokio::test(start_paused = true)]
async fn an_origin_is_not_removed_with_its_snapshots() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "backup", FakeVolume::snapshot(GIB, "a"));
    let status = node.remove("ssd", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("backup"), "{status}");
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "backup"]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_removal_is_internal() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.fail("lvremove", 1, Fault::says("device-mapper: remove ioctl failed"));
    assert_eq!(code(node.remove("ssd", "a").await), Code::Internal);
}
