//! The stream of the capacity of the device classes, and the health.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::{Code, Streaming};
use topolvm_proto::lvmd::{Empty, WatchItem, WatchResponse};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{GIB, Node, code};

const MINUTE: Duration = Duration::from_mins(1);

async fn watch(node: &Node) -> Streaming<WatchResponse> {
    node.vg.clone().watch(Empty {}).await.unwrap().into_inner()
}

/// The next message, which must come within a minute, without the option classes.
async fn next(stream: &mut Streaming<WatchResponse>) -> WatchResponse {
    without_option_classes(timeout(MINUTE, stream.message()).await.expect("no message").unwrap())
}

fn without_option_classes(message: Option<WatchResponse>) -> WatchResponse {
    let mut message = message.expect("the stream ended");
    message.items.iter_mut().for_each(|item| item.option_classes.clear());
    message
}

async fn is_quiet(stream: &mut Streaming<WatchResponse>) -> bool {
    timeout(MINUTE, stream.message()).await.is_err()
}

fn item(class: &str, free_bytes: u64, size_bytes: u64) -> WatchItem {
    let device_class = class.to_owned();
    WatchItem { free_bytes, device_class, size_bytes, volume_group_free_bytes: free_bytes, ..WatchItem::default() }
}

#[tokio::test(start_paused = true)]
async fn the_first_message_comes_at_once_and_has_every_class() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    let expected = WatchResponse {
        free_bytes: 9 * GIB,
        items: vec![item("ssd", 9 * GIB, 10 * GIB), item("hdd", 20 * GIB, 20 * GIB)],
        default_class: "ssd".to_owned(),
    };
    assert_eq!(next(&mut stream).await, expected);
    assert!(is_quiet(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn every_change_brings_one_message_to_everybody() {
    let node = Node::start().await;
    let (mut one, mut two) = (watch(&node).await, watch(&node).await);
    for stream in [&mut one, &mut two] {
        next(stream).await;
    }
    node.create("ssd", "a", GIB).await.unwrap();
    for stream in [&mut one, &mut two] {
        assert_eq!(next(stream).await.free_bytes, 8 * GIB);
        assert!(is_quiet(stream).await);
    }
    node.resize("ssd", "a", 2 << 30).await.unwrap();
    assert_eq!(next(&mut one).await.free_bytes, 7 * GIB);
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(next(&mut one).await.free_bytes, 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn what_changes_nothing_brings_no_message() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    // The message of the creation itself, if it was not looked up yet.
    let _settled = is_quiet(&mut stream).await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.resize("ssd", "a", 1).await.unwrap();
    code(node.create("ssd", "b", 100 * GIB).await);
    code(node.remove("ssd", "b").await);
    assert!(is_quiet(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_gets_the_newest_state_once() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    for number in 0..8 {
        node.create("ssd", &format!("v{number}"), GIB).await.unwrap();
    }
    let mut messages = Vec::new();
    while let Ok(message) = timeout(MINUTE, stream.message()).await {
        messages.push(message.unwrap().unwrap().free_bytes);
    }
    assert!(messages.len() < 8, "{messages:?}");
    assert_eq!(messages.last(), Some(&GIB));
}

#[tokio::test(start_paused = true)]
async fn what_others_do_is_seen_within_two_seconds() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    node.lvm.extend_group("vg-ssd", 5 * GIB);
    let message = timeout(Duration::from_secs(2), stream.message()).await.unwrap().unwrap();
    assert_eq!(without_option_classes(message).items[0], item("ssd", 14 * GIB, 15 * GIB));
}

#[tokio::test(start_paused = true)]
async fn a_stream_outlives_a_failing_lvm() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    node.lvm.fail_always("fullreport", Fault::Timeout);
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB));
    assert!(is_quiet(&mut stream).await);
    node.lvm.clear_faults();
    assert_eq!(next(&mut stream).await.free_bytes, 8 * GIB);
}

#[tokio::test(start_paused = true)]
async fn capacity_stream_starts_with_last_known_state_if_lvm_fails() {
    let node = Node::start().await;
    node.lvm.fail_always("fullreport", Fault::Timeout);
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB));
    node.notice().await;
    assert_eq!(next(&mut watch(&node).await).await.free_bytes, 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_fills_up_is_seen_without_a_process() {
    let node = Node::start_thin().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    let before = node.lvm.processes();
    node.lvm.edit_volume("vg", "pool", |pool| (pool.data_percent, pool.metadata_percent) = (90.0, 10.0));
    let message = timeout(Duration::from_secs(2), stream.message()).await.unwrap().unwrap().unwrap();
    let pool = message.items[1].thin_pool.as_ref().unwrap();
    assert_eq!((pool.data_percent, pool.metadata_percent), (90.0, 10.0));
    assert_eq!(node.lvm.processes(), before);
}

#[tokio::test(start_paused = true)]
async fn a_missing_group_has_no_space_and_does_not_hide_others() {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.remove_group("vg-ssd");
    node.notice().await;
    let mut stream = watch(&node).await;
    let expected = WatchResponse {
        free_bytes: 0,
        items: vec![item("ssd", 0, 0), item("hdd", 20 * GIB, 20 * GIB)],
        default_class: "ssd".to_owned(),
    };
    assert_eq!(next(&mut stream).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_the_process_is_about_to() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    node.shutdown.cancel();
    assert_eq!(stream.message().await.unwrap_err().code(), Code::Unavailable);
    node.tasks.wait().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn health_follows_lvm() {
    let node = Node::start().await;
    let mut works = node.engine.lvm_works();
    assert!(*works.borrow_and_update());
    node.lvm.fail_always("fullreport", Fault::says("no"));
    node.lvm.extend_group("vg-ssd", GIB);
    node.notice().await;
    assert!(!*works.borrow_and_update());
    node.lvm.clear_faults();
    // It is noticed without a request.
    timeout(MINUTE, works.changed()).await.unwrap().unwrap();
    assert!(*works.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_slow_lvm_is_not_a_dead_one() {
    let node = Node::start().await;
    let problems = node.engine.storage_problems();
    node.lvm.fail_always("fullreport", Fault::Timeout);
    node.lvm.extend_group("vg-ssd", GIB);
    node.notice().await;
    assert!(*node.engine.lvm_works().borrow());
    let messages = problems.borrow().join("\n");
    assert!(messages.contains("does not answer in time about volume group vg-ssd"), "{messages}");
    node.lvm.clear_faults();
    sleep(Duration::from_mins(1)).await;
    assert!(problems.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_that_cannot_be_granted_say_nothing_about_health() {
    let node = Node::start().await;
    code(node.create("ssd", "a", 100 * GIB).await);
    code(node.remove("ssd", "a").await);
    node.notice().await;
    node.lvm.remove_group("vg-hdd");
    node.notice().await;
    code(node.free("hdd").await);
    assert!(*node.engine.lvm_works().borrow());
}

#[tokio::test(start_paused = true)]
async fn capacity_stream_sends_a_message_after_a_manual_lvrename() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let mut stream = watch(&node).await;
    let before = next(&mut stream).await;
    let volume = node.lvm.volume("vg-ssd", "a").unwrap();
    node.lvm.remove_volume("vg-ssd", "a");
    node.lvm.add_volume("vg-ssd", "b", volume);
    assert_eq!(next(&mut stream).await, before);
    assert!(is_quiet(&mut stream).await);
}
