//! Objects that TopoLVM has made: without real size, label or annotation, and with names and failures of its own.

use serde_json::json;
use tonic::Code;
use topolvm_proto::csi::{ListSnapshotsRequest, ListVolumesRequest, Snapshot};
use topolvm_testkit::fixtures::logical_volume;

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, on_nodes, refusal, restored, sized, volume};

/// Leaves a status as TopoLVM 0.36.4 and older do: a volume id and nothing else.
fn without_size(harness: &Harness, name: &str, id: &str) {
    harness.api.apply_json(logical_volume(name).uid(id).build());
    harness.api.edit(LVS, "", name, |volume| volume["status"] = json!({"volumeID": id}));
}

#[tokio::test(start_paused = true)]
async fn legacy_volume_without_current_size_lists_requested_size() {
    let harness = Harness::new().await;
    without_size(&harness, "pvc-1", "u-1");
    harness.api.until(LVS, "", "pvc-1", |object| object?["status"]["volumeID"].as_str().map(drop)).await;
    let listed = loop {
        let page = harness.csi.clone().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
        match page.entries.into_iter().next() {
            Some(entry) => break entry.volume.unwrap(),
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!((listed.volume_id.as_str(), listed.capacity_bytes), ("u-1", 1 << 30));
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_real_size_grows_and_is_deleted() {
    let harness = Harness::new().await;
    without_size(&harness, "pvc-1", "u-1");
    harness.start(&Agent::with_free(9 * GIB));
    let answer = harness.expand("u-1", 2 * GIB).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(2 * GIB));
    harness.delete("u-1").await.unwrap();
    assert!(harness.object("pvc-1").is_null());
}

/// Weak point 3 of what this replaces: a source without a size crashed the controller.
#[tokio::test(start_paused = true)]
async fn snapshot_of_a_volume_without_current_size_has_requested_size() {
    let harness = Harness::new().await;
    without_size(&harness, "pvc-1", "u-1");
    let making = async {
        let size = harness.api.until(LVS, "", "snapshot-1", |object| Some(object?["spec"]["size"].clone())).await;
        assert_eq!(size, "1Gi");
        let made = json!({"volumeID": "s-1", "currentSize": "1028Mi"});
        harness.api.edit(LVS, "", "snapshot-1", |snapshot| snapshot["status"] = made);
    };
    let (snapshot, ()) = tokio::join!(harness.snapshot("snapshot-1", "u-1"), making);
    let snapshot = snapshot.unwrap();
    assert_eq!((snapshot.snapshot_id.as_str(), snapshot.size_bytes), ("s-1", 1 << 30));
}

/// A snapshot that TopoLVM took: no annotation says what it was taken of.
async fn taken(harness: &Harness) -> Vec<Snapshot> {
    let snapshot = logical_volume("snapshot-1").from_source("pvc-1", "ro").uid("s-1").ready("s-1", "1Gi");
    harness.api.apply_json(snapshot.build());
    loop {
        let page = harness.csi.clone().list_snapshots(ListSnapshotsRequest::default()).await.unwrap().into_inner();
        if !page.entries.is_empty() {
            return page.entries.into_iter().filter_map(|entry| entry.snapshot).collect();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_topolvm_is_found_listed_restored_and_deleted() {
    let harness = Harness::with_agent().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    harness.synced_with("u-1").await;
    assert_eq!(taken(&harness).await[0].source_volume_id, "u-1");
    assert_eq!(harness.snapshot("snapshot-1", "u-1").await.unwrap().snapshot_id, "s-1");
    harness.create(restored(on_nodes(volume("pvc-2"), &["n1"]), "s-1")).await.unwrap();
    harness.delete_snapshot("s-1").await.unwrap();
    assert!(harness.object("snapshot-1").is_null());
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_topolvm_outlives_its_source() {
    let harness = Harness::with_agent().await;
    // The name is all that is left of the source
    assert_eq!(taken(&harness).await[0].source_volume_id, "pvc-1");
    harness.create(restored(on_nodes(volume("pvc-2"), &["n1"]), "s-1")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn volume_restored_by_topolvm_is_returned_by_a_new_request() {
    let harness = Harness::with_agent().await;
    let snapshot = logical_volume("snapshot-1").from_source("pvc-1", "ro").uid("s-1").ready("s-1", "1Gi");
    harness.api.apply_json(snapshot.build());
    let copy = logical_volume("pvc-2").sized("2Gi").from_source("snapshot-1", "rw").uid("u-2").ready("u-2", "2Gi");
    harness.api.apply_json(copy.build());
    let request = sized(restored(on_nodes(volume("pvc-2"), &["n1"]), "s-1"), 2 * GIB, 0);
    assert_eq!(harness.create(request).await.unwrap().volume_id, "u-2");
    harness.delete_snapshot("s-1").await.unwrap();
    let request = sized(restored(on_nodes(volume("pvc-2"), &["n1"]), "s-1"), 2 * GIB, 0);
    assert_eq!(refusal(harness.create(request).await).0, Code::NotFound);
}
