//! ControllerExpandVolume.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;
use tonic::{Code, Response, Status};
use topolvm_proto::csi::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};
use topolvm_testkit::fixtures::logical_volume;

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, MIB, block, range, refusal};

/// A volume of 1 GiB on n1, which the node has made.
fn existing(harness: &Harness) {
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").ready("u-1", "1Gi").build());
}

/// The same, after an expansion for which there was no room.
fn failed_before(harness: &Harness) {
    existing(harness);
    let status = json!({"volumeID": "u-1", "currentSize": "1Gi", "code": 8, "message": "full"});
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = status);
}

impl Harness {
    /// Expands it to 2 GiB beside the test.
    fn expanding(&self) -> JoinHandle<Result<Response<ControllerExpandVolumeResponse>, Status>> {
        let mut csi = self.csi.clone();
        self.beside(async move {
            let request = ControllerExpandVolumeRequest {
                volume_id: "u-1".to_owned(),
                capacity_range: Some(range(2 * GIB, 0)),
                ..ControllerExpandVolumeRequest::default()
            };
            csi.controller_expand_volume(request).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_grows_to_the_real_size_and_its_filesystem_is_next() {
    let harness = Harness::with_agent().await;
    existing(&harness);
    let answer = harness.expand("u-1", 2 * GIB + 1).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(2 * GIB + 4 * MIB));
    assert!(answer.node_expansion_required);
    let annotations = harness.object("pvc-1")["metadata"]["annotations"].clone();
    assert!(annotations["topolvm.io/resize-requested-at"].is_string(), "{annotations}");
    assert_eq!(annotations["topolvm.io/requested-size"], (2 * GIB + 1).to_string());

    harness.expand("u-1", 3 * GIB).await.unwrap();
    assert!(harness.object("pvc-1")["metadata"]["annotations"]["topolvm.io/requested-size"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_block_volume_needs_nothing_more_on_the_node() {
    let harness = Harness::with_agent().await;
    existing(&harness);
    let request = ControllerExpandVolumeRequest {
        volume_id: "u-1".to_owned(),
        capacity_range: Some(range(2 * GIB, 0)),
        volume_capability: Some(block()),
        ..ControllerExpandVolumeRequest::default()
    };
    let answer = harness.csi.clone().controller_expand_volume(request).await.unwrap().into_inner();
    assert!(!answer.node_expansion_required);
}

#[tokio::test(start_paused = true)]
async fn expanding_to_no_more_than_there_is_changes_nothing() {
    let harness = Harness::new().await;
    existing(&harness);
    let before = harness.object("pvc-1");
    let answer = harness.expand("u-1", GIB / 2).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(GIB));
    assert_eq!(harness.object("pvc-1"), before);
}

#[tokio::test(start_paused = true)]
async fn expansion_on_a_full_node_is_out_of_range_and_may_be_reduced() {
    let harness = Harness::new().await;
    let agent = Agent::with_free(2 * GIB);
    harness.start(&agent);
    existing(&harness);
    let (code, message) = refusal(harness.expand("u-1", 9 * GIB).await);
    assert_eq!(code, Code::OutOfRange);
    assert!(message.contains("node n1") && message.contains("no room"), "{message}");

    let answer = harness.expand("u-1", 3 * GIB).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(3 * GIB));
    assert_eq!(harness.object("pvc-1")["spec"]["size"], "3Gi");
}

/// For external-resizer "failed precondition" means that the volume is in use: it would wait until no pod uses it.
#[tokio::test(start_paused = true)]
async fn expansion_without_the_volume_group_is_an_internal_error() {
    let harness = Harness::new().await;
    existing(&harness);
    let expanding = harness.expanding();
    harness.api.until(LVS, "", "pvc-1", |object| (object?["spec"]["size"] == "2Gi").then_some(())).await;
    harness.api.edit(LVS, "", "pvc-1", |volume| {
        volume["status"]["code"] = json!(9);
        volume["status"]["message"] = json!("volume group vg lacks physical volumes");
    });
    let (code, message) = refusal(expanding.await.unwrap());
    assert_eq!(code, Code::Internal);
    assert!(message.contains("node n1") && message.contains("lacks physical volumes"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_old_failure_is_not_the_answer_to_a_new_request() {
    let harness = Harness::new().await;
    failed_before(&harness);
    let expanding = harness.expanding();
    harness.api.until(LVS, "", "pvc-1", |object| (object?["spec"]["size"] == "2Gi").then_some(())).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!expanding.is_finished());
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"volumeID": "u-1", "currentSize": "2Gi"}));
    assert_eq!(expanding.await.unwrap().unwrap().into_inner().capacity_bytes, 2 << 30);
}

#[tokio::test(start_paused = true)]
async fn repeated_failure_is_returned_at_the_deadline() {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(0));
    existing(&harness);
    for _ in 0..2 {
        assert_eq!(refusal(harness.expand("u-1", 2 * GIB).await).0, Code::OutOfRange);
    }
}

#[tokio::test(start_paused = true)]
async fn expansion_failure_with_unchanged_message_is_recognized() {
    let harness = Harness::new().await;
    failed_before(&harness);
    let expanding = harness.expanding();
    let start = tokio::time::Instant::now();
    harness.api.until(LVS, "", "pvc-1", |object| (object?["spec"]["size"] == "2Gi").then_some(())).await;
    // One right after the other, so that the watch may report both at once
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"]["code"] = json!(0));
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"]["code"] = json!(8));
    assert_eq!(refusal(expanding.await.unwrap()).0, Code::OutOfRange);
    assert!(start.elapsed().as_secs() < 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_named() {
    let harness = Harness::new().await;
    existing(&harness);
    let (code, message) = refusal(harness.expand("u-1", 2 * GIB).await);
    assert_eq!(code, Code::DeadlineExceeded);
    assert!(message.contains("agent of node n1 has not expanded"), "{message}");
    assert_eq!(harness.object("pvc-1")["spec"]["size"], "2Gi");
}

#[tokio::test(start_paused = true)]
async fn change_by_another_client_in_between_is_kept() {
    let harness = Harness::with_agent().await;
    existing(&harness);
    harness.api.before_next("patch", LVS, |api| {
        api.edit(LVS, "", "pvc-1", |volume| volume["metadata"]["annotations"] = json!({"mine": "1"}));
    });
    harness.expand("u-1", 2 * GIB).await.unwrap();
    assert_eq!(harness.object("pvc-1")["metadata"]["annotations"]["mine"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_size_is_not_known_is_not_made_smaller() {
    let harness = Harness::new().await;
    harness.api.apply_json(logical_volume("pvc-1").uid("u-1").sized("5Gi").build());
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"volumeID": "u-1"}));
    harness.start(&Agent::with_free(9 * GIB));
    let answer = harness.expand("u-1", 2 * GIB).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(5 * GIB));
}

#[tokio::test(start_paused = true)]
async fn expansion_reduced_to_the_current_size_resets_the_request() {
    let harness = Harness::new().await;
    failed_before(&harness);
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["spec"]["size"] = "100Gi".into());
    let answer = harness.expand("u-1", GIB).await.unwrap();
    assert_eq!(u64::try_from(answer.capacity_bytes), Ok(GIB));
    assert_eq!(harness.object("pvc-1")["spec"]["size"], "1Gi");
}

#[tokio::test(start_paused = true)]
async fn growth_that_goes_on_is_not_taken_back_by_an_older_request() {
    let harness = Harness::new().await;
    existing(&harness);
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["spec"]["size"] = "3Gi".into());
    harness.expand("u-1", GIB).await.unwrap();
    assert_eq!(harness.object("pvc-1")["spec"]["size"], "3Gi");
}

#[tokio::test(start_paused = true)]
async fn unknown_volumes_and_incomplete_requests_are_refused() {
    let harness = Harness::new().await;
    assert_eq!(refusal(harness.expand("u-9", GIB).await).0, Code::NotFound);
    assert_eq!(refusal(harness.expand("", GIB).await).0, Code::InvalidArgument);
    let no_range = ControllerExpandVolumeRequest { volume_id: "u-1".to_owned(), ..Default::default() };
    assert_eq!(refusal(harness.csi.clone().controller_expand_volume(no_range).await).0, Code::InvalidArgument);
}
