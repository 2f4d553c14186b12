//! Links that lead to another volume's device, as where udev has stopped and a device number was given out again.

use std::path::{Path, PathBuf};

use linux_mount::Contents;
use tonic::Code;
use topolvm_testkit::lvm::FakeVolume;

use crate::lvmd_process::VG;
use crate::node::{GIB, Node, device};

/// Another tenant's blank volume, to whose device the link of `v1` leads.
fn mislead(node: &Node) -> PathBuf {
    let other = Path::new("/dev").join(VG).join("v9");
    if node.lvm.volume(VG, "v9").is_none() {
        node.lvm.add_volume(VG, "v9", FakeVolume::thick(GIB));
    }
    node.machine.mislead(&device(), &other);
    other
}

#[tokio::test]
async fn stale_device_link_is_refused_and_the_other_volume_is_kept() {
    let node = Node::start().await;
    mislead(&node);
    for request in [node.filesystem(), node.block()] {
        let status = node.publish(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        let says = ["/dev/myvg/v1 points to device 253:", "but the logical volume is device 253:", "vgmknodes"];
        assert!(says.iter().all(|says| status.message().contains(says)), "{status}");
    }
    assert_eq!((node.machine.done(), node.machine.mounts()), (Vec::new(), Vec::new()));
}

#[tokio::test]
async fn device_link_that_changes_during_mkfs_mounts_no_volume() {
    let node = Node::start().await;
    node.machine.hold_mkfs();
    let publishing = node.publish(node.filesystem());
    let changing = async {
        node.machine.mkfs_begun(1).await;
        let other = mislead(&node);
        node.machine.put(&other, Contents::Filesystem("ext4".to_owned()));
        node.machine.release_mkfs();
    };
    let (published, ()) = tokio::join!(publishing, changing);
    assert_eq!(published.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!((node.machine.done().len(), node.machine.mounts()), (1, Vec::new()));
}

#[tokio::test]
async fn volume_without_a_device_number_is_activated_at_publish() {
    let node = Node::start().await;
    node.lvm.edit_volume(VG, "v1", |volume| {
        volume.active = false;
        volume.attr = "-wi-------".to_owned();
    });
    node.publish(node.filesystem()).await.unwrap();
    assert_eq!(node.machine.done(), ["mkfs /dev/myvg/v1"]);
}

#[tokio::test]
async fn active_lv_without_a_device_node_names_the_dev_mount() {
    let node = Node::start().await;
    node.machine.mislead(&device(), Path::new("/dev/none"));
    for request in [node.filesystem(), node.block()] {
        let status = node.publish(request).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("a hostPath volume /dev"), "{status}");
    }
}

#[tokio::test]
async fn stale_link_never_grows_another_filesystem() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    mislead(&node);
    node.grow_lv(2 * GIB);
    let status = node.expand("v1", &node.target(), 2 * GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}
