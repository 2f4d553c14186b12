//! Free blocks of new filesystems are discarded when their pods have them already.

use std::time::Duration;

use tokio::time::timeout;

use crate::node::Node;

/// A node whose agent discards free blocks, which takes its time.
async fn slow_node() -> Node {
    let node = Node::start().await;
    node.machine.hold_discards();
    node.tasks.spawn("discards", node.service.discard_free_blocks(node.shutdown.clone()));
    node
}

#[tokio::test]
async fn publish_does_not_wait_for_the_discard_of_free_blocks() {
    let node = slow_node().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.discard_begun(&node.target()).await;
    assert_eq!(node.machine.discards(), [""; 0]);
}

#[tokio::test]
async fn discarding_ends_before_the_volume_is_unmounted() {
    let node = slow_node().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.discard_begun(&node.target()).await;
    timeout(Duration::from_secs(10), node.unpublish()).await.unwrap().unwrap();
    assert_eq!((node.machine.discards(), node.machine.mounts()), (vec!["stopped"], Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn free_blocks_of_a_filesystem_that_was_there_are_left_alone() {
    let node = Node::start().await;
    node.publish(node.filesystem()).await.unwrap();
    node.unpublish().await.unwrap();
    node.watch();
    node.publish(node.filesystem()).await.unwrap();
    node.machine.hold_discards();
    node.tasks.spawn("discards", node.service.discard_free_blocks(node.shutdown.clone()));
    timeout(Duration::from_secs(1), node.machine.discard_begun(&node.target())).await.unwrap_err();
}

#[tokio::test]
async fn the_end_of_the_agent_ends_discarding() {
    let node = slow_node().await;
    node.publish(node.filesystem()).await.unwrap();
    node.machine.discard_begun(&node.target()).await;
    node.shutdown.cancel();
    timeout(Duration::from_secs(10), node.tasks.clone().wait()).await.unwrap().unwrap();
    assert_eq!(node.machine.discards(), ["stopped"]);
}
