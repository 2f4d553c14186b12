//! An agent that was installed for another root directory than the kubelet's.

use std::path::Path;

use tonic::{Code, Status};

use crate::node::Node;

/// Checks that an error names the settings.
fn assert_names_settings(status: &Status) {
    assert_eq!(status.code(), Code::FailedPrecondition);
    let message = status.message();
    assert!(message.contains("--kubelet-dir") && message.contains("node.kubeletWorkDirectory"), "{message}");
}

#[tokio::test]
async fn publishing_outside_of_the_shared_directory_is_refused() {
    let node = Node::start().await;
    node.machine.share_only(Path::new("/var/lib/kubelet"));
    assert_names_settings(&node.publish(node.filesystem()).await.unwrap_err());
    assert_eq!((node.machine.formatted(), node.machine.mounts()), (0, Vec::new()));
    assert!(!node.target().exists());
}

#[tokio::test]
async fn unpublishing_fails_while_the_node_has_the_mount() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.mount_on_node(&node.target());
    assert_names_settings(&node.unpublish().await.unwrap_err());
}
