//! The announced CSI capabilities, and no others, are served.

use tonic::{Code, Request};
use topolvm_controller::DriverSettings;
use topolvm_proto::csi::controller_service_capability::{Type, rpc};
use topolvm_proto::csi::{
    ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest, GetPluginCapabilitiesRequest, GetSnapshotRequest,
    ListSnapshotsRequest,
};

use crate::agent::Agent;
use crate::harness::{GIB, Harness, cloned, on_nodes, refusal, settings, volume};

async fn announced(harness: &Harness) -> Vec<rpc::Type> {
    let answer = harness.csi.clone().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
    let capabilities = answer.into_inner().capabilities.into_iter();
    capabilities
        .filter_map(|capability| match capability.r#type? {
            Type::Rpc(rpc) => Some(rpc.r#type()),
        })
        .collect()
}

const WITHOUT_SNAPSHOTS: [rpc::Type; 9] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetVolume,
    rpc::Type::GetCapacity,
    rpc::Type::ExpandVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
    rpc::Type::ListVolumeHealth,
];

#[tokio::test(start_paused = true)]
async fn only_what_is_implemented_is_announced() {
    let harness = Harness::new().await;
    let snapshots =
        [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume];
    assert_eq!(announced(&harness).await, [&WITHOUT_SNAPSHOTS[..], &snapshots].concat());
    let attach = harness.csi.clone().controller_publish_volume(ControllerPublishVolumeRequest::default()).await;
    assert_eq!(refusal(attach).0, Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_classes_cannot_snapshot_says_so() {
    let harness = Harness::configured(DriverSettings { snapshots: false, ..settings() }).await;
    harness.start(&Agent::with_free(100 * GIB));
    let source = harness.made("pvc-1").await;
    assert_eq!(announced(&harness).await, WITHOUT_SNAPSHOTS);

    // The agents of the nodes do not know the flags of this controller, and a plugin has one set of capabilities
    let plugin = harness.identity.clone().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(plugin.into_inner(), topolvm_proto::plugin::capabilities());

    assert_eq!(refusal(harness.snapshot("snapshot-1", &source).await).0, Code::Unimplemented);
    assert_eq!(refusal(harness.delete_snapshot("s-1").await).0, Code::Unimplemented);
    let list = harness.csi.clone().list_snapshots(ListSnapshotsRequest::default()).await;
    assert_eq!(refusal(list).0, Code::Unimplemented);
    let get = harness.csi.clone().get_snapshot(Request::new(GetSnapshotRequest::default())).await;
    assert_eq!(refusal(get).0, Code::Unimplemented);
    let (code, message) = refusal(harness.create(cloned(on_nodes(volume("pvc-2"), &["n1"]), &source)).await);
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains("--enable-snapshots"), "{message}");
    assert!(harness.object("pvc-2").is_null());
}
