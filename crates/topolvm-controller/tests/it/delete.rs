//! DeleteVolume and ValidateVolumeCapabilities: finding volumes by id, and removing them.

use std::time::Duration;

use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi::volume_capability::{AccessMode, access_mode::Mode};
use topolvm_proto::csi::{ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, VolumeCapability};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{logical_volume, node};

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, in_ten_seconds, mount, on_nodes, refusal, volume};

const FINALIZER: &str = "topolvm.io/logicalvolume";

#[tokio::test(start_paused = true)]
async fn deleting_ends_when_the_node_has_removed_the_volume() {
    let harness = Harness::with_agent().await;
    let volume = harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    harness.delete(&volume.volume_id).await.unwrap();
    assert!(harness.object("pvc-1").is_null());
    harness.delete(&volume.volume_id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_id_is_required_and_an_unknown_one_is_gone() {
    let harness = Harness::new().await;
    assert_eq!(refusal(harness.delete("").await).0, Code::InvalidArgument);
    harness.delete("no-such-volume").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_named_and_the_volume_is_not_called_gone() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").finalizer(FINALIZER).ready("u-1", "1Gi").build());
    let (code, message) = refusal(harness.delete("u-1").await);
    assert_eq!(code, Code::DeadlineExceeded);
    assert!(message.contains("agent of node n1 has not removed"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_object_without_finalizer_is_gone_at_once() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    harness.delete("u-1").await.unwrap();
    assert!(harness.object("pvc-1").is_null());
}

#[tokio::test(start_paused = true)]
async fn volume_unknown_to_the_watch_is_found_by_field_selector() {
    let harness = blind().await;
    harness.start(&Agent::with_free(GIB));
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").finalizer(FINALIZER).ready("u-1", "1Gi").build());
    harness.api.apply_json(logical_volume("pvc-2").uid("u-2").ready("u-2", "1Gi").build());
    harness.api.clear_requests();
    harness.delete("u-1").await.unwrap();
    assert!(harness.object("pvc-1").is_null());
    assert!(!harness.object("pvc-2").is_null());
    assert_eq!(harness.api.count("list", LVS), 1);
    assert!(harness.api.requests()[0].1.contains("fieldSelector=status.volumeID"), "{:?}", harness.api.requests());
}

#[tokio::test(start_paused = true)]
async fn volume_deletion_unseen_by_the_watch_is_not_reported_done() {
    let harness = blind().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").finalizer(FINALIZER).ready("u-1", "1Gi").build());
    assert_eq!(refusal(harness.delete("u-1").await).0, Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn volume_deletion_seen_by_the_watch_before_the_answer_is_done() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let through = api.client();
    let slow = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let through = through.clone();
        let is_deletion = request.method() == http::Method::DELETE;
        async move {
            let answer = through.send(request).await;
            if is_deletion {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            answer
        }
    });
    let harness = Harness::over(&api, kube::Client::new(slow, "default"), ApiFlavor::TopoLvm);
    harness.synced().await;
    harness.start(&Agent::with_free(GIB));
    let volume = harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    let start = tokio::time::Instant::now();
    harness.delete(&volume.volume_id).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_the_selectable_field_all_objects_are_listed() {
    let harness = blind().await;
    harness.api.set_selectable_fields(LVS, &[]);
    for index in 0..3 {
        let id = format!("u-{index}");
        harness.api.apply_json(logical_volume(&format!("pvc-{index}")).uid(&id).ready(&id, "1Gi").build());
    }
    harness.delete("u-1").await.unwrap();
    harness.delete("u-9").await.unwrap();
    let left: Vec<_> = harness
        .api
        .list_json(LVS)
        .iter()
        .map(|volume| volume["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(left, ["pvc-0", "pvc-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_volume_of_the_same_name_survives() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    harness.synced_with("u-1").await;
    harness.api.before_next("delete", LVS, |api| {
        api.delete(LVS, "", "pvc-1");
        api.apply_json(logical_volume("pvc-1").uid("u-2").ready("u-2", "1Gi").build());
    });
    harness.delete("u-1").await.unwrap();
    assert_eq!(harness.object("pvc-1")["metadata"]["uid"], "u-2");
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_is_away_no_volume_counts_as_deleted() {
    let harness = Harness::new().await;
    harness.api.disconnect();
    assert_eq!(refusal(harness.delete("u-1").await).0, Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn capabilities_of_a_known_volume_are_confirmed() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
    let confirmed = validate(&harness, "u-1", vec![mount("xfs")]).await.unwrap().confirmed.unwrap();
    assert_eq!(confirmed.volume_capabilities, [mount("xfs")]);

    let mut shared = mount("xfs");
    shared.access_mode = Some(AccessMode { mode: Mode::MultiNodeMultiWriter.into() });
    let answer = validate(&harness, "u-1", vec![shared]).await.unwrap();
    assert!(answer.confirmed.is_none() && answer.message.contains("MULTI_NODE_MULTI_WRITER"), "{answer:?}");

    assert_eq!(refusal(validate(&harness, "u-9", vec![mount("xfs")]).await).0, Code::NotFound);
    assert_eq!(refusal(validate(&harness, "", vec![mount("xfs")]).await).0, Code::InvalidArgument);
    assert_eq!(refusal(validate(&harness, "u-1", vec![]).await).0, Code::InvalidArgument);
}

async fn validate(
    harness: &Harness,
    id: &str,
    volume_capabilities: Vec<VolumeCapability>,
) -> Result<ValidateVolumeCapabilitiesResponse, tonic::Status> {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities,
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    Ok(harness.csi.clone().validate_volume_capabilities(in_ten_seconds(request)).await?.into_inner())
}

/// A controller whose watch of LogicalVolumes reports nothing new.
async fn blind() -> Harness {
    let api = ApiServer::new();
    api.inject("watch", LVS, 99, Failure::Hang);
    let harness = Harness::on(&api, ApiFlavor::TopoLvm);
    harness.synced().await;
    harness
}
