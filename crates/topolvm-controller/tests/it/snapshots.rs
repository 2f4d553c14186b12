//! CreateSnapshot and DeleteSnapshot.

use serde_json::json;
use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi::{CreateSnapshotRequest, TopologyRequirement};
use topolvm_testkit::fixtures::logical_volume;

use crate::agent::Agent;
use crate::harness::{
    GIB, Harness, LVS, in_ten_seconds, on_nodes, refusal, restored, sized, topology, volume, with_filesystem,
    with_parameter,
};

/// A request for a snapshot of `source`, allowed on `node`.
fn allowed_on(node: &str, source: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: "snapshot-1".to_owned(),
        source_volume_id: source.to_owned(),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology(node)],
            ..TopologyRequirement::default()
        }),
        ..CreateSnapshotRequest::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_a_read_only_copy_beside_its_source() {
    let harness = Harness::with_agent().await;
    let request = with_parameter(on_nodes(volume("pvc-1"), &["n2"]), "topolvm.io/device-class", "ssd");
    let source = harness.create(sized(request, GIB + 1, 0)).await.unwrap();
    let snapshot = harness.snapshot("Snapshot-1", &source.volume_id).await.unwrap();

    let object = harness.object("snapshot-1");
    assert_eq!(
        object["spec"],
        json!({
            "name": "snapshot-1", "nodeName": "n2", "size": "1028Mi", "deviceClass": "ssd",
            "source": "pvc-1", "accessType": "ro",
        })
    );
    let annotations = json!({
        "topolvm.io/source-volume-id": source.volume_id, "topolvm.io/requested-size": (GIB + 1).to_string(),
    });
    assert_eq!(object["metadata"]["annotations"], annotations);
    assert_eq!(object["metadata"]["finalizers"], json!(["topolvm.io/logicalvolume"]));

    assert_eq!(snapshot.snapshot_id, object["metadata"]["uid"]);
    assert_eq!(snapshot.source_volume_id, source.volume_id);
    assert_eq!(u64::try_from(snapshot.size_bytes), Ok(GIB + 1));
    assert!(snapshot.ready_to_use);
    assert_eq!(snapshot.accessible_topology, []);
}

/// The node formats no copy in which it does not see the filesystem of the source.
#[tokio::test(start_paused = true)]
async fn a_copy_has_the_record_of_its_sources_filesystem() {
    let harness = Harness::new().await;
    let source = logical_volume("pvc-1").uid("u-1").annotation("topolvm.io/filesystem", "xfs").ready("u-1", "1Gi");
    harness.api.apply_json(source.build());
    harness.start(&Agent::with_free(3 * GIB));
    let snapshot = harness.snapshot("snapshot-1", "u-1").await.unwrap().snapshot_id;
    let request = restored(with_filesystem(volume("pvc-2"), "xfs"), &snapshot);
    let restored = harness.create(request.clone()).await.unwrap();
    assert_eq!(
        harness.object("snapshot-1")["metadata"]["annotations"],
        json!({"topolvm.io/source-volume-id": "u-1", "topolvm.io/filesystem": "xfs"})
    );
    let annotations = &harness.object("pvc-2")["metadata"]["annotations"];
    assert_eq!(*annotations, json!({"topolvm.io/source-snapshot-id": snapshot, "topolvm.io/filesystem": "xfs"}));
    // The copy's own record is no difference to what is asked for
    harness
        .api
        .edit(LVS, "", "pvc-2", |object| object["metadata"]["annotations"]["topolvm.io/filesystem"] = json!("ext4"));
    assert_eq!(harness.create(request).await.unwrap(), restored);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_snapshot_is_the_same_in_every_answer() {
    let harness = Harness::with_agent().await;
    harness.api.set_clock("2026-03-04T05:06:07Z".parse().unwrap());
    let source = harness.made("pvc-1").await;
    let first = harness.snapshot("snapshot-1", &source).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_mins(3)).await;
    assert_eq!(harness.snapshot("snapshot-1", &source).await.unwrap(), first);
    let time = first.creation_time.unwrap();
    let written = harness.object("snapshot-1")["metadata"]["creationTimestamp"].clone();
    assert_eq!(json!(jiff::Timestamp::from_second(time.seconds).unwrap().to_string()), written);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_found_again_after_its_source_has_grown() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let first = harness.snapshot("snapshot-1", &source).await.unwrap();
    harness.expand(&source, 2 * GIB).await.unwrap();
    assert_eq!(harness.snapshot("snapshot-1", &source).await.unwrap(), first);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_found_again_after_its_source_is_gone() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let first = harness.snapshot("snapshot-1", &source).await.unwrap();
    harness.delete(&source).await.unwrap();
    assert_eq!(harness.snapshot("snapshot-1", &source).await.unwrap(), first);
    assert_eq!(refusal(harness.snapshot("snapshot-2", &source).await).0, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_snapshot_of_another_volume_is_refused() {
    let harness = Harness::with_agent().await;
    let (one, two) = (harness.made("pvc-1").await, harness.made("pvc-2").await);
    harness.snapshot("snapshot-1", &one).await.unwrap();
    let (code, message) = refusal(harness.snapshot("snapshot-1", &two).await);
    assert_eq!((code, message.contains("as a copy of pvc-1")), (Code::AlreadyExists, true), "{message}");
    assert_eq!(refusal(harness.snapshot("pvc-2", &one).await).0, Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn a_recreated_volume_of_that_name_is_another_source() {
    let harness = Harness::with_agent().await;
    let first = harness.made("pvc-1").await;
    harness.snapshot("snapshot-1", &first).await.unwrap();
    harness.delete(&first).await.unwrap();
    let second = harness.made("pvc-1").await;
    assert_eq!(refusal(harness.snapshot("snapshot-1", &second).await).0, Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_that_take_the_same_snapshot_take_one() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    let other = Harness::on(&harness.api, ApiFlavor::TopoLvm);
    other.synced().await;
    harness.start(&Agent::with_free(GIB));
    let (one, two) = tokio::join!(harness.snapshot("snapshot-1", "u-1"), other.snapshot("snapshot-1", "u-1"));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(harness.api.list_json(LVS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn snapshot_refused_by_the_node_reports_why_and_is_removed() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    let refusing = harness.api.clone();
    drop(harness.beside(async move {
        refusing.until(LVS, "", "snapshot-1", |object| object.map(drop)).await;
        refusing.edit(LVS, "", "snapshot-1", |snapshot| {
            snapshot["metadata"]["finalizers"] = json!([]);
            snapshot["status"] = json!({"code": 12, "message": "thick volumes cannot be copied"});
        });
    }));
    let (code, message) = refusal(harness.snapshot("snapshot-1", "u-1").await);
    assert_eq!((code, message.contains("thick volumes")), (Code::Unimplemented, true), "{message}");
    assert!(harness.object("snapshot-1").is_null());
}

#[tokio::test(start_paused = true)]
async fn snapshot_outside_of_allowed_nodes_is_resource_exhausted() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let mut csi = harness.csi.clone();
    let (code, message) = refusal(csi.create_snapshot(in_ten_seconds(allowed_on("n2", &source))).await);
    assert_eq!((code, message.contains("on node n1")), (Code::ResourceExhausted, true), "{message}");
    csi.create_snapshot(in_ten_seconds(allowed_on("n1", &source))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unknown_sources_and_incomplete_requests_are_refused() {
    let harness = Harness::with_agent().await;
    assert_eq!(refusal(harness.snapshot("snapshot-1", "u-9").await).0, Code::NotFound);
    assert_eq!(refusal(harness.snapshot("", "u-9").await).0, Code::InvalidArgument);
    assert_eq!(refusal(harness.snapshot("snapshot-1", "").await).0, Code::InvalidArgument);
    let source = harness.made("pvc-1").await;
    let snapshot = harness.snapshot("snapshot-1", &source).await.unwrap().snapshot_id;
    assert_eq!(refusal(harness.snapshot("snapshot-2", &snapshot).await).0, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn snapshot_deletion_keeps_source_and_restored_volumes() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let snapshot = harness.snapshot("snapshot-1", &source).await.unwrap().snapshot_id;
    harness.create(restored(on_nodes(volume("pvc-2"), &["n1"]), &snapshot)).await.unwrap();
    harness.delete_snapshot(&snapshot).await.unwrap();
    assert!(harness.object("snapshot-1").is_null());
    assert!(!harness.object("pvc-1").is_null() && !harness.object("pvc-2").is_null());
    harness.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(refusal(harness.delete_snapshot("").await).0, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_no_volume_and_a_volume_no_snapshot() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let snapshot = harness.snapshot("snapshot-1", &source).await.unwrap().snapshot_id;
    harness.delete_snapshot(&source).await.unwrap();
    harness.delete(&snapshot).await.unwrap();
    assert!(!harness.object("pvc-1").is_null() && !harness.object("snapshot-1").is_null());
    assert_eq!(refusal(harness.expand(&snapshot, 2 * GIB).await).0, Code::NotFound);
}
