//! Listing volumes and asking for free space.

use tonic::Code;
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{GIB, Node, code};

#[tokio::test]
async fn a_list_has_the_volumes_of_the_class_with_everything_about_them() {
    let node = Node::start().await;
    node.create("hdd", "other", GIB).await.unwrap();
    let volume = FakeVolume { tags: vec!["x".to_owned(), "y=z".to_owned()], ..FakeVolume::thick(GIB) };
    node.lvm.add_volume("vg-ssd", "a", volume);
    let volumes = node.list("ssd").await.unwrap();
    let [volume] = &volumes[..] else { panic!("{volumes:?}") };
    assert_eq!((volume.name.as_str(), volume.size_bytes), ("a", 1 << 30));
    assert_eq!((volume.path.as_str(), volume.attr.as_str()), ("/dev/vg-ssd/a", "-wi-a-----"));
    assert_eq!(volume.tags, ["x", "y=z"]);
    assert_eq!(volume.dev_major, 253);
}

#[tokio::test]
async fn a_volume_without_tags_has_an_empty_list_of_tags() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB));
    assert_eq!(node.list("ssd").await.unwrap()[0].tags, Vec::<String>::new());
}

#[tokio::test]
async fn an_inactive_volume_has_device_0_0() {
    let node = Node::start().await;
    node.create("hdd", "a", GIB).await.unwrap();
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = false);
    let volume = &node.list("ssd").await.unwrap()[0];
    assert_eq!((volume.dev_major, volume.dev_minor, volume.attr.as_str()), (0, 0, "-wi-------"));
}

#[tokio::test]
async fn thin_pools_and_what_is_in_them_belong_to_other_classes() {
    let node = Node::start().await;
    node.create("ssd", "thick", GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "pool", FakeVolume::thin_pool(2 * GIB));
    node.lvm.add_volume("vg-ssd", "thin", FakeVolume::thin(GIB, "pool"));
    let names: Vec<_> = node.list("ssd").await.unwrap().into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["thick"]);
}

#[tokio::test]
async fn a_snapshot_is_listed_as_large_as_its_origin() {
    let node = Node::start().await;
    node.create("ssd", "a", 2 * GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "b", FakeVolume::snapshot(GIB, "a"));
    assert_eq!(node.list("ssd").await.unwrap()[1].size_bytes, 2 << 30);
}

#[tokio::test]
async fn free_space_is_without_the_spare() {
    let node = Node::start().await;
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
    assert_eq!(node.free("").await.unwrap(), 9 * GIB);
    assert_eq!(node.free("hdd").await.unwrap(), 20 * GIB);
}

#[tokio::test]
async fn free_space_is_never_negative() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(10 * GIB));
    assert_eq!(node.free("ssd").await.unwrap(), 0);
}

#[tokio::test]
async fn reading_costs_one_command() {
    let node = Node::start().await;
    let before = node.lvm.commands().len();
    node.list("ssd").await.unwrap();
    node.free("ssd").await.unwrap();
    assert_eq!(node.lvm.commands().len() - before, 2);
}

#[tokio::test]
async fn failures_have_their_codes() {
    let node = Node::start().await;
    assert_eq!(code(node.list("nvme").await), Code::FailedPrecondition);
    assert_eq!(code(node.free("nvme").await), Code::FailedPrecondition);
    node.lvm.fail("fullreport", 1, Fault::says("oops"));
    let status = node.list("ssd").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Internal, "fullreport failed (exit status 5): oops"));
    node.lvm.lose_group("vg-ssd");
    assert_eq!(code(node.list("ssd").await), Code::FailedPrecondition);
    assert_eq!(code(node.free("ssd").await), Code::FailedPrecondition);
}
