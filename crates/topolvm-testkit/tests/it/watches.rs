//! Watches, raw and through kube's watcher and reflector.

use std::pin::pin;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::{WatchEvent, WatchParams};
use kube::core::metadata::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, ResourceExt as _};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Change;
use topolvm_testkit::fixtures::{logical_volume, node};

use crate::support::volumes;

/// Type and name of the next event.
async fn next(events: &mut (impl Stream<Item = kube::Result<WatchEvent<LogicalVolume>>> + Unpin)) -> String {
    match events.next().await.unwrap().unwrap() {
        WatchEvent::Added(volume) => format!("ADDED {}", volume.name_any()),
        WatchEvent::Modified(volume) => format!("MODIFIED {}", volume.name_any()),
        WatchEvent::Deleted(volume) => format!("DELETED {}", volume.name_any()),
        WatchEvent::Bookmark(bookmark) => {
            let is_end = bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end");
            format!("BOOKMARK{}", if is_end { " end" } else { "" })
        }
        WatchEvent::Error(status) => format!("ERROR {}", status.code),
    }
}

#[tokio::test]
async fn a_watch_shows_what_is_there_and_what_happens() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let mut events = pin!(volumes(&server).watch(&WatchParams::default(), "0").await.unwrap());
    assert_eq!(next(&mut events).await, "ADDED a");
    server.apply_json(logical_volume("b").build());
    server.apply_json(logical_volume("b").sized("2Gi").build());
    server.delete("logicalvolumes", "", "a");
    server.send_bookmarks();
    assert_eq!(next(&mut events).await, "ADDED b");
    assert_eq!(next(&mut events).await, "MODIFIED b");
    assert_eq!(next(&mut events).await, "DELETED a");
    assert_eq!(next(&mut events).await, "BOOKMARK");
}

#[tokio::test]
async fn a_watch_goes_on_after_the_version_it_names() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let version = server.get_json("logicalvolumes", "", "a").unwrap();
    let version = version["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    server.apply_json(logical_volume("b").build());
    let mut events = pin!(volumes(&server).watch(&WatchParams::default(), &version).await.unwrap());
    assert_eq!(next(&mut events).await, "ADDED b");
}

#[tokio::test]
async fn an_object_that_begins_or_ceases_to_match_is_added_or_deleted() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").on("n1").build());
    let params = WatchParams::default().fields("spec.nodeName=n2");
    let mut events = pin!(volumes(&server).watch(&params, "0").await.unwrap());
    server.apply_json(logical_volume("a").on("n2").build());
    server.apply_json(logical_volume("a").on("n2").sized("2Gi").build());
    server.apply_json(logical_volume("a").on("n3").build());
    server.apply_json(logical_volume("b").on("n2").build());
    assert_eq!(next(&mut events).await, "ADDED a");
    assert_eq!(next(&mut events).await, "MODIFIED a");
    assert_eq!(next(&mut events).await, "DELETED a");
    assert_eq!(next(&mut events).await, "ADDED b");
}

#[tokio::test]
async fn the_removal_of_the_last_finalizer_is_a_deletion_to_watches() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").finalizer("f").build());
    let mut changes = server.subscribe("logicalvolumes");
    server.delete("logicalvolumes", "", "a");
    server.edit("logicalvolumes", "", "a", |volume| volume["metadata"]["finalizers"] = serde_json::json!([]));
    assert!(
        matches!(changes.next().await, Change::Modified(volume) if !volume["metadata"]["deletionTimestamp"].is_null())
    );
    assert!(matches!(changes.next().await, Change::Deleted(_)));
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let params = WatchParams::default().initial_events();
    let mut events = pin!(volumes(&server).watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut events).await, "ADDED a");
    assert_eq!(next(&mut events).await, "BOOKMARK end");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_time_is_over() {
    let server = ApiServer::new();
    let mut events = pin!(volumes(&server).watch(&WatchParams::default().timeout(60), "0").await.unwrap());
    let start = tokio::time::Instant::now();
    assert_eq!(next(&mut events).await, "BOOKMARK");
    assert!(events.next().await.is_none());
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test]
async fn a_watch_from_a_forgotten_version_is_gone() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let mut running = pin!(volumes(&server).watch(&WatchParams::default(), "2").await.unwrap());
    server.apply_json(logical_volume("b").build());
    server.expire();
    assert_eq!(next(&mut running).await, "ADDED b");
    assert_eq!(next(&mut running).await, "ERROR 410");
    let mut late = pin!(volumes(&server).watch(&WatchParams::default(), "2").await.unwrap());
    assert_eq!(next(&mut late).await, "ERROR 410");
    assert!(late.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn reflector_survives_disconnects_closed_watches_and_expiry() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("a").build());
    let writer = Writer::new(ApiFlavor::TopoLvm);
    let store = writer.as_reader();
    let events = watcher(volumes(&server), Config::default()).default_backoff();
    let mut events = pin!(reflector(writer, events));
    let names = || {
        let mut names: Vec<String> = store.state().iter().map(|volume| volume.name_any()).collect();
        names.sort();
        names
    };
    while names() != ["a"] {
        events.next().await.unwrap().unwrap();
    }

    let interruptions: [fn(&ApiServer); 3] = [ApiServer::close_watches, ApiServer::disconnect, ApiServer::expire];
    for (interrupt, name) in interruptions.into_iter().zip(["b", "c", "d"]) {
        interrupt(&server);
        server.reconnect();
        server.apply_json(logical_volume(name).build());
        // Errors are on the way
        while !names().iter().any(|known| known == name) {
            drop(events.next().await.unwrap());
        }
    }
    assert_eq!(names(), ["a", "b", "c", "d"]);
    // Only the expiry asked for a second list
    assert_eq!(server.count("list", "logicalvolumes"), 2);
}

#[tokio::test]
async fn a_watcher_may_ask_for_a_streaming_list_or_for_metadata() {
    let server = ApiServer::new();
    server.apply_json(node("n1").build());
    let nodes: Api<Node> = Api::all(server.client());
    let mut streaming = pin!(watcher(nodes.clone(), Config::default().streaming_lists()));
    assert!(matches!(streaming.try_next().await.unwrap(), Some(Event::Init)));
    assert!(matches!(streaming.try_next().await.unwrap(), Some(Event::InitApply(_))));
    assert!(matches!(streaming.try_next().await.unwrap(), Some(Event::InitDone)));
    assert_eq!(server.count("list", "nodes"), 0);

    let metadata: Api<PartialObjectMeta<Node>> = Api::all(server.client());
    let mut metadata = pin!(watcher(metadata, Config::default().fields("metadata.name=n1")).touched_objects());
    assert_eq!(metadata.try_next().await.unwrap().unwrap().name_any(), "n1");
    server.edit("nodes", "", "n1", |node| node["metadata"]["labels"]["a"] = "b".into());
    assert_eq!(metadata.try_next().await.unwrap().unwrap().labels().get("a").unwrap(), "b");
}
