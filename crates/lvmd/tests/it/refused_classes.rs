//! Device classes in which LVM creates no volumes: their free space, the code of creations, and their recovery.

use std::time::Duration;

use rstest::rstest;
use tonic::Code;
use topolvm_proto::lvmd::{CreateLvRequest, DeviceClassItem, Empty};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, Node, create_request};

/// A message of LVM for a reason that has nothing to do with the request.
const REASON: &str = "Failed to activate thin pool vg/pool.";

async fn class(node: &Node, name: &str) -> DeviceClassItem {
    let mut watch = node.storage.clone().watch(Empty {}).await.unwrap().into_inner();
    let classes = watch.message().await.unwrap().unwrap().device_classes;
    classes.into_iter().find(|class| class.name == name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn class_is_refused_at_the_limit_of_volumes() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.set_max_volumes("vg-ssd", 1);
    node.notice().await;
    assert_eq!(node.free("ssd").await.unwrap(), 0);
    let refused = class(&node, "ssd").await;
    assert_eq!(refused.free_bytes, 0);
    assert!(refused.refusal.contains("vgchange -l NUMBER vg-ssd"), "{}", refused.refusal);
    let status = node.create("ssd", "b", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    node.resize("ssd", "a", i64::try_from(2 * GIB).unwrap()).await.unwrap();
    node.lvm.set_max_volumes("vg-ssd", 2);
    node.notice().await;
    assert_eq!(class(&node, "ssd").await.refusal, "");
    node.create("ssd", "b", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn class_is_refused_until_lvm_creates_a_volume() {
    let node = Node::start().await;
    node.lvm.fail_always("lvcreate", Fault::says(REASON));
    let status = node.create("ssd", "a", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains(REASON), "{status}");
    assert_eq!((node.free("ssd").await.unwrap(), class(&node, "ssd").await.free_bytes), (0, 0));
    assert!(class(&node, "ssd").await.refusal.contains(REASON));
    assert!(node.free("hdd").await.unwrap() > 0, "another volume group");
    node.lvm.clear_faults();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(class(&node, "ssd").await.refusal, "");
    assert_eq!((node.free("ssd").await.unwrap(), node.lvm.volumes("vg-ssd")), (9 * GIB, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn class_is_not_refused_for_one_failed_request() {
    let node = Node::start().await;
    node.lvm.fail("lvcreate", 1, Fault::says(REASON));
    let status = node.create("ssd", "a", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert_eq!((node.free("ssd").await.unwrap(), node.lvm.volumes("vg-ssd")), (9 * GIB, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn option_class_is_refused_alone() {
    let node = Node::start().await;
    let request = CreateLvRequest { lvcreate_option_class: "wrong".to_owned(), ..create_request("ssd", "a", GIB) };
    let status = node.lv.clone().create_lv(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    let classes = watch.message().await.unwrap().unwrap().items;
    let ssd = classes.iter().find(|class| class.device_class == "ssd").unwrap();
    let wrong = ssd.option_classes.iter().find(|options| options.lvcreate_option_class == "wrong").unwrap();
    assert_eq!(wrong.free_bytes, 0);
}

#[rstest]
#[case("device-classes: [{name: a, volume-group: vg, spare-gb: 0, lvcreate-options: [--config, devices/x=1]}]")]
#[case("device-classes: [{name: a, volume-group: vg, type: thin, thin-pool: {name: pool, overprovision-ratio: 1.0}}]")]
#[tokio::test(start_paused = true)]
async fn class_without_proof_publishes_nothing_before_it(#[case] config: &str) {
    let lvm = FakeLvm::new().with_group("vg", 8 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume { attr: "twi---tz--".to_owned(), ..FakeVolume::thin_pool(GIB) });
    lvm.fail_always("lvcreate", Fault::says(REASON));
    let node = Node::start_with(lvm, config).await;
    assert_eq!(node.free("a").await.unwrap(), 0);
    node.notice().await;
    assert!(class(&node, "a").await.refusal.contains(REASON));
    node.lvm.clear_faults();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(node.free("a").await.unwrap() > 0);
}
