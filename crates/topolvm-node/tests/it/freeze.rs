//! Filesystems that a backup tool has frozen.

use linux_mount::Contents;
use rstest::rstest;
use tonic::Code;
use topolvm_proto::csi::NodePublishVolumeRequest;

use crate::node::{GIB, Node, device};

/// Returns the text of the only Event, which is that of the thaw.
fn thaw_event(node: &Node) -> String {
    let [event] = node.api.list_json("events.events.k8s.io").try_into().unwrap();
    assert_eq!((&event["reason"], &event["regarding"]["name"]), (&"FilesystemThawed".into(), &"pvc-1".into()));
    event["note"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn frozen_filesystem_is_thawed_before_it_is_unmounted() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.freeze(&device());
    node.unpublish().await.unwrap();
    assert!(!node.machine.is_frozen(&device()));
    assert!(thaw_event(&node).contains("fsfreeze"));
}

#[tokio::test]
async fn frozen_filesystem_stays_frozen_while_another_pod_has_it() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    let second = node.dir.path().join("second").join("mount");
    std::fs::create_dir_all(&second).unwrap();
    node.machine.mount_by_hand(&device(), &second);
    node.machine.freeze(&device());
    node.unpublish().await.unwrap();
    assert!(node.machine.is_frozen(&device()));
}

#[rstest]
#[case::writable(false)]
#[case::readonly(true)]
#[tokio::test]
async fn frozen_filesystem_without_a_mount_is_thawed_and_checked(#[case] readonly: bool) {
    let node = Node::start().await;
    node.machine.put(&device(), Contents::Filesystem("ext4".to_owned()));
    node.machine.freeze(&device());
    node.publish(NodePublishVolumeRequest { readonly, ..node.filesystem() }).await.unwrap();
    assert!(!node.machine.is_frozen(&device()));
    assert_eq!(node.machine.done().len(), usize::from(!readonly));
    assert_eq!(node.machine.mounts().len(), 1);
    assert!(thaw_event(&node).contains("mounted again"));
}

#[tokio::test]
async fn growth_of_frozen_filesystem_fails_and_locks_nothing() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.grow_lv(2 * GIB);
    node.machine.freeze(&device());
    let before = node.machine.growths();
    for _ in 0..2 {
        let status = node.expand("v1", &node.target(), 2 * GIB).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("fsfreeze --unfreeze"), "{status}");
    }
    assert_eq!(node.machine.growths(), before + 1, "each would wait until the filesystem is thawed");
    node.unpublish().await.unwrap();
    assert!(!node.machine.is_frozen(&device()));
}
