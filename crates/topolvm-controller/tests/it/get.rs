//! ControllerGetVolume, GetSnapshot and ControllerGetVolumeHealth.

use serde_json::json;
use tonic::Code;
use topolvm_proto::csi::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, GetSnapshotRequest, Snapshot, VolumeHealth,
    VolumeHealthErrorType,
};
use topolvm_testkit::fixtures::node;

use crate::harness::{GIB, Harness, refusal, topology};

#[tokio::test(start_paused = true)]
async fn a_volume_is_returned_by_its_id() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    let get = async |id: &str| {
        harness.csi.clone().controller_get_volume(ControllerGetVolumeRequest { volume_id: id.to_owned() }).await
    };
    let answer = get(&id).await.unwrap().into_inner();
    let volume = answer.volume.unwrap();
    assert_eq!((volume.volume_id, volume.capacity_bytes), (id, 1 << 30));
    assert_eq!(volume.accessible_topology, [topology("n1")]);
    assert!(answer.status.is_some());
    assert_eq!(refusal(get("u-9").await).0, Code::NotFound);
    assert_eq!(refusal(get("").await).0, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_returned_by_its_id() {
    let harness = Harness::with_agent().await;
    let source = harness.made("pvc-1").await;
    let snapshot = harness.snapshot("snapshot-1", &source).await.unwrap();
    let get = async |id: &str| {
        let request = GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        harness.csi.clone().get_snapshot(request).await
    };
    let found = get(&snapshot.snapshot_id).await.unwrap().into_inner().snapshot;
    assert_eq!(found, Some(Snapshot { accessible_topology: vec![topology("n1")], ..snapshot }));
    assert_eq!(refusal(get(&source).await).0, Code::NotFound);
    assert_eq!(refusal(get("").await).0, Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_inaccessible_when_its_node_is_gone() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    let health = async |id: &str| {
        let request = ControllerGetVolumeHealthRequest { volume_id: id.to_owned(), ..Default::default() };
        harness.csi.clone().controller_get_volume_health(request).await.map(|answer| answer.into_inner().volume_health)
    };
    assert_eq!(health(&id).await.unwrap(), Some(VolumeHealth { volume_id: id.clone(), health_statuses: vec![] }));

    let condition = json!([{
        "type": "Ready", "status": "False", "reason": "VolumeLost", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    harness.api.edit("logicalvolumes.topolvm.io", "", "pvc-1", |object| object["status"]["conditions"] = condition);
    let lost = loop {
        let found = health(&id).await.unwrap().unwrap().health_statuses;
        if !found.is_empty() {
            break found;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((lost[0].reason.as_str(), lost[0].status()), ("LogicalVolumeMissing", VolumeHealthErrorType::DataLoss));

    harness.api.delete("nodes", "", "n1");
    harness.api.apply_json(node("n3").capacity("", 1).build());
    harness.until_free("", 21 * GIB).await;
    assert_eq!(health(&id).await.unwrap().unwrap().health_statuses[0].reason, "NodeGone");
    assert_eq!(refusal(health("u-9").await).0, Code::NotFound);
    assert_eq!(refusal(health("").await).0, Code::InvalidArgument);
}
