//! Volumes whose object is gone: put into quarantine, given to another object, removed.

use rstest::rstest;
use tonic::{Code, Status};
use topolvm_proto::lvmd::{AdoptLvRequest, LogicalVolume, QuarantineLvRequest, RemoveQuarantinedLvRequest};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, MANAGED, Node, code, create_request};

const VG: &str = "vg-ssd";
const OLD: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const NEW: &str = "7c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const KEPT: &str = "topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const SINCE_7: &str = "topolvm.io/quarantined=7";

/// A node with a volume of an object.
async fn start() -> Node {
    let node = Node::start().await;
    let tags = vec!["topolvm.io/logicalvolume=pvc-1".to_owned(), "topolvm.io/device-class=ssd".to_owned()];
    node.create_with(topolvm_proto::lvmd::CreateLvRequest { tags, ..create_request("ssd", OLD, GIB) }).await.unwrap();
    node
}

async fn quarantine(node: &Node, name: &str) -> Result<(), Status> {
    let request = QuarantineLvRequest { name: name.to_owned(), device_class: "ssd".to_owned(), quarantined_at: 7 };
    node.orphans.clone().quarantine_lv(request).await.map(drop)
}

async fn adopt(node: &Node, name: &str, new: &str, bytes: u64) -> Result<LogicalVolume, Status> {
    let request = AdoptLvRequest {
        name: name.to_owned(),
        device_class: "ssd".to_owned(),
        new_name: new.to_owned(),
        size_bytes: bytes.try_into().unwrap(),
        tags: vec!["topolvm.io/logicalvolume=pvc-2".to_owned()],
    };
    Ok(node.orphans.clone().adopt_lv(request).await?.into_inner().volume.unwrap())
}

async fn remove(node: &Node, at: i64) -> Result<(), Status> {
    let request =
        RemoveQuarantinedLvRequest { name: KEPT.to_owned(), device_class: "ssd".to_owned(), quarantined_at: at };
    node.orphans.clone().remove_quarantined_lv(request).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn quarantined_volume_keeps_its_space_and_tags_when_renamed() {
    let node = start().await;
    let (free, before) = (node.free("ssd").await.unwrap(), node.lvm.volume(VG, OLD).unwrap());
    quarantine(&node, OLD).await.unwrap();
    let kept = node.lvm.volume(VG, KEPT).unwrap();
    assert_eq!((node.lvm.volumes(VG), kept.uuid), (vec![KEPT.to_owned()], before.uuid));
    let tags = ["topolvm.io/logicalvolume=pvc-1", "topolvm.io/device-class=ssd", MANAGED, SINCE_7];
    assert_eq!(kept.tags, tags);
    assert_eq!(node.free("ssd").await.unwrap(), free);
    assert_eq!(node.list("ssd").await.unwrap()[0].tags, tags);
}

#[tokio::test(start_paused = true)]
async fn quarantine_accepts_only_closed_volumes_that_lvmd_created() {
    let node = start().await;
    node.lvm.hide_devices();
    node.lvm.edit_volume(VG, OLD, |volume| volume.open = true);
    assert_eq!(code(quarantine(&node, OLD).await), Code::FailedPrecondition);
    node.lvm.edit_volume(VG, OLD, |volume| volume.open = false);
    node.lvm.add_volume(VG, NEW, FakeVolume::thick(GIB));
    node.notice().await;
    assert_eq!(code(quarantine(&node, NEW).await), Code::FailedPrecondition);
    node.create("ssd", "theirs", GIB).await.unwrap();
    assert_eq!(code(quarantine(&node, "theirs").await), Code::InvalidArgument);
    assert_eq!(code(quarantine(&node, "1c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a").await), Code::NotFound);
    assert_eq!(node.lvm.volumes(VG), [OLD, NEW, "theirs"]);
    quarantine(&node, OLD).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn quarantine_without_its_rename_is_finished_by_a_retry() {
    let node = start().await;
    node.lvm.fail("lvrename", 1, Fault::says("Interrupted"));
    quarantine(&node, OLD).await.unwrap_err();
    assert_eq!(node.lvm.volumes(VG), [OLD]);
    quarantine(&node, OLD).await.unwrap();
    assert_eq!(node.lvm.volumes(VG), [KEPT]);
}

#[tokio::test(start_paused = true)]
async fn quarantined_volume_is_protected_until_it_is_adopted() {
    let node = start().await;
    quarantine(&node, OLD).await.unwrap();
    // As when its object is there again: a new and empty volume would hide the data
    assert_eq!(code(node.create("ssd", OLD, GIB).await), Code::Unavailable);
    assert_eq!(code(node.remove("ssd", KEPT).await), Code::InvalidArgument);
    assert_eq!(code(node.remove("ssd", OLD).await), Code::NotFound);
    assert_eq!(code(node.create("ssd", KEPT, GIB).await), Code::InvalidArgument);
    adopt(&node, KEPT, OLD, GIB).await.unwrap();
    assert_eq!(node.lvm.volumes(VG), [OLD]);
    node.create("ssd", OLD, GIB).await.unwrap();
}

#[rstest]
#[case::in_quarantine(true)]
#[case::not_in_quarantine(false)]
#[tokio::test(start_paused = true)]
async fn adoption_renames_and_retags_the_volume_and_is_idempotent(#[case] is_quarantined: bool) {
    let node = start().await;
    let uuid = node.lvm.volume(VG, OLD).unwrap().uuid;
    if is_quarantined {
        quarantine(&node, OLD).await.unwrap();
    }
    let name = if is_quarantined { KEPT } else { OLD };
    for _ in 0..2 {
        let adopted = adopt(&node, name, NEW, GIB).await.unwrap();
        assert_eq!((adopted.name.as_str(), adopted.size_bytes), (NEW, 1 << 30));
    }
    let volume = node.lvm.volume(VG, NEW).unwrap();
    assert_eq!((node.lvm.volumes(VG), volume.uuid), (vec![NEW.to_owned()], uuid));
    assert_eq!(volume.tags, ["topolvm.io/device-class=ssd", MANAGED, "topolvm.io/logicalvolume=pvc-2"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_gets_no_volume_but_the_one_that_it_names() {
    let node = start().await;
    node.lvm.hide_devices();
    // Another size
    assert_eq!(code(adopt(&node, OLD, NEW, 2 * GIB).await), Code::FailedPrecondition);
    // No such volume
    assert_eq!(code(adopt(&node, KEPT, NEW, GIB).await), Code::NotFound);
    // Not a volume of an object
    node.create("ssd", "theirs", GIB).await.unwrap();
    assert_eq!(code(adopt(&node, "theirs", NEW, GIB).await), Code::InvalidArgument);
    assert_eq!(code(adopt(&node, OLD, "mine", GIB).await), Code::InvalidArgument);
    // In another class
    node.create("hdd", "3c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", GIB).await.unwrap();
    let elsewhere = adopt(&node, "3c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", NEW, GIB).await;
    assert_eq!(code(elsewhere), Code::FailedPrecondition);
    // In use
    node.lvm.edit_volume(VG, OLD, |volume| volume.open = true);
    assert_eq!(code(adopt(&node, OLD, NEW, GIB).await), Code::FailedPrecondition);
    // A snapshot
    node.lvm.edit_volume(VG, OLD, |volume| {
        volume.open = false;
        volume.attr.replace_range(1..2, "r");
    });
    node.notice().await;
    assert_eq!(code(adopt(&node, OLD, NEW, GIB).await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volumes(VG), [OLD, "theirs"]);
}

#[tokio::test(start_paused = true)]
async fn quarantine_removal_requires_the_start_time_of_the_quarantine() {
    let node = start().await;
    assert_eq!(code(remove(&node, 7).await), Code::NotFound);
    quarantine(&node, OLD).await.unwrap();
    assert_eq!(code(remove(&node, 6).await), Code::FailedPrecondition);
    // An administrator removes the quarantine tag by hand just then
    node.lvm.edit_volume(VG, KEPT, |volume| volume.tags.retain(|tag| tag != SINCE_7));
    remove(&node, 7).await.unwrap_err();
    assert_eq!(node.lvm.volumes(VG), [KEPT]);
    node.lvm.edit_volume(VG, KEPT, |volume| volume.tags.push(SINCE_7.to_owned()));
    // Which counts as a change
    node.lvm.extend_group(VG, 0);
    node.notice().await;
    remove(&node, 7).await.unwrap();
    assert!(node.lvm.volumes(VG).is_empty());
    let removals = node.lvm.commands().into_iter().filter(|command| command.starts_with("lvremove"));
    assert!(removals.clone().count() > 0 && removals.clone().all(|command| command.contains(SINCE_7)));
}

#[tokio::test(start_paused = true)]
async fn quarantined_volume_of_a_wiping_class_is_wiped_on_removal() {
    let lvm = FakeLvm::new().with_group(VG, 10 * GIB);
    let config = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 1, wipe: zero}]";
    let node = Node::start_with(lvm, config).await;
    node.create("ssd", OLD, GIB).await.unwrap();
    quarantine(&node, OLD).await.unwrap();
    let stop = node.lvm.stop_wiping_at(0);
    remove(&node, 7).await.unwrap();
    let [name] = &node.lvm.volumes(VG)[..] else { panic!("{:?}", node.lvm.volumes(VG)) };
    assert!(name.starts_with("topolvm.wiping."), "{name}");
    drop(stop);
}
