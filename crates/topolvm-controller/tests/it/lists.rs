//! ListVolumes, ListSnapshots and ControllerListVolumeHealth.

use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi::{
    ControllerListVolumeHealthRequest, ListSnapshotsRequest, ListVolumesRequest, VolumeHealthErrorType,
};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::harness::{Harness, LVS, cloned, on_nodes, refusal, topology, volume};

/// Ids of a page of volumes, and the token for the next.
async fn volumes(harness: &Harness, max_entries: i32, token: &str) -> (Vec<String>, String) {
    let request = ListVolumesRequest { max_entries, starting_token: token.to_owned() };
    let page = harness.csi.clone().list_volumes(request).await.unwrap().into_inner();
    (page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect(), page.next_token)
}

/// Ids of a page of snapshots, and the token for the next.
async fn snapshots(harness: &Harness, request: ListSnapshotsRequest) -> (Vec<String>, String) {
    let page = harness.csi.clone().list_snapshots(request).await.unwrap().into_inner();
    (page.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect(), page.next_token)
}

/// Five volumes `u-0` to `u-4`, of which `u-3` is on a node that is gone, and snapshots `s-0` of `u-0` and `s-1` of
/// `u-1`.
async fn harness() -> Harness {
    let harness = Harness::new().await;
    for index in 0..5 {
        let id = format!("u-{index}");
        let node = if index == 3 { "n9" } else { "n1" };
        harness.api.apply_json(logical_volume(&format!("pvc-{index}")).on(node).uid(&id).ready(&id, "1Gi").build());
    }
    for index in 0..2 {
        let (id, source) = (format!("s-{index}"), format!("pvc-{index}"));
        let snapshot = logical_volume(&format!("snapshot-{index}")).from_source(&source, "ro");
        harness.api.apply_json(snapshot.uid(&id).ready(&id, "1Gi").build());
    }
    // Neither is a volume: one is not made yet, one is going
    harness.api.apply_json(logical_volume("pvc-8").build());
    let leaving = logical_volume("pvc-9").uid("u-9").finalizer("topolvm.io/logicalvolume").ready("u-9", "1Gi");
    harness.api.apply_json(leaving.build());
    harness.api.delete(LVS, "", "pvc-9");
    harness.synced_with("u-4").await;
    harness
}

#[tokio::test(start_paused = true)]
async fn all_volumes_are_listed_and_nothing_else() {
    let harness = harness().await;
    harness.api.clear_requests();
    assert_eq!(
        volumes(&harness, 0, "").await,
        (["u-0", "u-1", "u-2", "u-3", "u-4"].map(str::to_owned).to_vec(), String::new())
    );
    assert_eq!(harness.api.requests().len(), 0, "lists come from the watch");
}

#[tokio::test(start_paused = true)]
async fn volume_list_pages_continue_after_a_deleted_volume() {
    let harness = harness().await;
    let (first, token) = volumes(&harness, 2, "").await;
    assert_eq!(first, ["u-0", "u-1"]);
    harness.api.delete(LVS, "", "pvc-1");
    harness.api.apply_json(logical_volume("pvc-15").uid("u-15").ready("u-15", "1Gi").build());
    harness.synced_with("u-15").await;
    let (second, token) = volumes(&harness, 2, &token).await;
    assert_eq!(second, ["u-15", "u-2"]);
    let (rest, end) = volumes(&harness, 0, &token).await;
    assert_eq!((rest, end), (vec!["u-3".to_owned(), "u-4".to_owned()], String::new()));
    assert_eq!(volumes(&harness, 5, "").await.1, "", "a page that ends with the list has no next");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_token_means_begin_again() {
    let harness = harness().await;
    for token in ["invalid-token", "after/"] {
        let request = ListVolumesRequest { max_entries: 0, starting_token: token.to_owned() };
        assert_eq!(refusal(harness.csi.clone().list_volumes(request).await).0, Code::Aborted);
    }
    let request = ListVolumesRequest { max_entries: -1, starting_token: String::new() };
    assert_eq!(refusal(harness.csi.clone().list_volumes(request).await).0, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_listed_volume_says_where_it_is_and_what_it_was_made_from() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let clone = cloned(on_nodes(volume("pvc-2"), &["n1"]), &source);
    let content_source = clone.volume_content_source.clone();
    harness.create(clone).await.unwrap();
    harness.delete(&source).await.unwrap();
    let page = harness.csi.clone().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let [entry] = page.entries.as_slice() else { panic!("{page:?}") };
    let listed = entry.volume.as_ref().unwrap();
    assert_eq!((listed.capacity_bytes, &listed.content_source), (1 << 30, &content_source));
    assert_eq!(listed.accessible_topology, [topology("n1")]);
}

#[tokio::test(start_paused = true)]
async fn snapshots_are_listed_all_or_of_one_volume() {
    let harness = harness().await;
    assert_eq!(snapshots(&harness, ListSnapshotsRequest::default()).await.0, ["s-0", "s-1"]);
    let of = |source: &str| ListSnapshotsRequest { source_volume_id: source.to_owned(), ..Default::default() };
    assert_eq!(snapshots(&harness, of("u-1")).await.0, ["s-1"]);
    assert_eq!(snapshots(&harness, of("u-7")).await.0, [""; 0]);

    let (first, token) = snapshots(&harness, ListSnapshotsRequest { max_entries: 1, ..Default::default() }).await;
    assert_eq!(first, ["s-0"]);
    let rest = ListSnapshotsRequest { starting_token: token, ..Default::default() };
    assert_eq!(snapshots(&harness, rest).await, (vec!["s-1".to_owned()], String::new()));
}

#[tokio::test(start_paused = true)]
async fn one_snapshot_is_read_from_the_api_server_without_listing_all() {
    let harness = harness().await;
    harness.api.clear_requests();
    let with_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
    assert_eq!(snapshots(&harness, with_id("s-1")).await.0, ["s-1"]);
    assert_eq!((harness.api.count("get", LVS), harness.api.count("list", LVS)), (1, 0));
    for id in ["s-9", "u-1"] {
        assert_eq!(snapshots(&harness, with_id(id)).await.0, [""; 0]);
    }
    for (verb, path) in harness.api.requests() {
        assert!(verb != "list" || path.contains("fieldSelector=status.volumeID"), "{path}");
    }
    let other = ListSnapshotsRequest { source_volume_id: "u-0".to_owned(), ..with_id("s-1") };
    assert_eq!(snapshots(&harness, other).await.0, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_listed_before_the_volumes_are_known() {
    let api = ApiServer::new();
    api.disconnect();
    let harness = Harness::on(&api, ApiFlavor::TopoLvm);
    assert_eq!(refusal(harness.csi.clone().list_volumes(ListVolumesRequest::default()).await).0, Code::Unavailable);
    let health = harness.csi.clone().controller_list_volume_health(ControllerListVolumeHealthRequest::default()).await;
    assert_eq!(refusal(health).0, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn volume_health_list_has_only_volumes_with_errors() {
    let harness = harness().await;
    let request = ControllerListVolumeHealthRequest { max_entries: 1, ..Default::default() };
    let page = harness.csi.clone().controller_list_volume_health(request).await.unwrap().into_inner();
    assert_eq!(page.next_token, "");
    let [health] = page.entries.as_slice() else { panic!("{page:?}") };
    assert_eq!(health.volume_id, "u-3");
    assert_eq!(health.health_statuses[0].status(), VolumeHealthErrorType::Inaccessible);
    assert!(health.health_statuses[0].message.contains("node n9"), "{health:?}");
}
