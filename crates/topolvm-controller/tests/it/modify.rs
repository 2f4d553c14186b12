//! ControllerModifyVolume and the mutable parameters of CreateVolume.

use std::collections::HashMap;

use serde_json::{Value, json};
use tonic::{Code, Status};
use topolvm_proto::csi::ControllerModifyVolumeRequest;

use crate::harness::{Harness, LVS, in_ten_seconds, on_nodes, refusal, volume, with_parameter};

const OPTION_CLASS: &str = "topolvm.io/lvcreate-option-class";
const READ_BYTES: &str = "topolvm.io/read-bytes-per-second";
const WRITE_OPERATIONS: &str = "topolvm.io/write-operations-per-second";

fn parameters(list: &[(&str, &str)]) -> HashMap<String, String> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn modify(harness: &Harness, id: &str, mutable: &[(&str, &str)]) -> Result<(), Status> {
    let request = ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: parameters(mutable),
        ..ControllerModifyVolumeRequest::default()
    };
    harness.csi.clone().controller_modify_volume(in_ten_seconds(request)).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn attributes_class_sets_lvcreate_options_of_a_new_volume() {
    let harness = Harness::with_agent().await;
    let mut request = on_nodes(volume("pvc-1"), &["n1"]);
    request.mutable_parameters = parameters(&[(OPTION_CLASS, "raid")]);
    let id = harness.create(request).await.unwrap().volume_id;
    assert_eq!(harness.object("pvc-1")["spec"]["lvcreateOptionClass"], "raid");
    modify(&harness, &id, &[(OPTION_CLASS, "raid")]).await.unwrap();
    modify(&harness, &id, &[]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_is_made_of_cannot_be_changed_later() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    let (code, message) = refusal(modify(&harness, &id, &[(OPTION_CLASS, "raid")]).await);
    assert_eq!(
        (code, message.contains("cannot be changed after its creation")),
        (Code::InvalidArgument, true),
        "{message}"
    );
    let (code, message) = refusal(modify(&harness, &id, &[("iops", "9")]).await);
    assert_eq!(
        (code, message.contains("unknown mutable parameter \"iops\"")),
        (Code::InvalidArgument, true),
        "{message}"
    );
}

fn annotations(harness: &Harness) -> Value {
    harness.object("pvc-1")["metadata"]["annotations"].clone()
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_storage_class_are_in_the_object_from_the_start() {
    let harness = Harness::with_agent().await;
    let request = with_parameter(on_nodes(volume("pvc-1"), &["n1"]), READ_BYTES, "10485760");
    harness.create(with_parameter(request.clone(), WRITE_OPERATIONS, "70")).await.unwrap();
    assert_eq!(annotations(&harness), json!({READ_BYTES: "10Mi", WRITE_OPERATIONS: "70"}));
    // They may have been changed before a request is repeated
    harness.create(request).await.unwrap();
    assert_eq!(annotations(&harness), json!({READ_BYTES: "10Mi", WRITE_OPERATIONS: "70"}));
}

#[tokio::test(start_paused = true)]
async fn io_limits_of_a_volume_are_exactly_those_of_its_class() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    for (parameters, expected) in [
        (vec![(READ_BYTES, "5M")], json!({READ_BYTES: "5000000"})),
        (vec![(READ_BYTES, "1Gi"), (WRITE_OPERATIONS, "9")], json!({READ_BYTES: "1Gi", WRITE_OPERATIONS: "9"})),
        (vec![(WRITE_OPERATIONS, "8"), (OPTION_CLASS, "")], json!({WRITE_OPERATIONS: "8"})),
    ] {
        modify(&harness, &id, &parameters).await.unwrap();
        assert_eq!(annotations(&harness), expected);
    }
    modify(&harness, &id, &[]).await.unwrap();
    let is_left = |key: &str| annotations(&harness).get(key).is_some();
    assert!(!is_left(READ_BYTES) && !is_left(WRITE_OPERATIONS));
}

#[tokio::test(start_paused = true)]
async fn io_limits_are_not_rewritten_and_conflicts_are_retried() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    harness.api.fail_next("patch", LVS, 1, 409);
    modify(&harness, &id, &[(READ_BYTES, "5M")]).await.unwrap();
    let version = || harness.object("pvc-1")["metadata"]["resourceVersion"].clone();
    let written = version();
    modify(&harness, &id, &[(READ_BYTES, "5000000")]).await.unwrap();
    assert_eq!((version(), annotations(&harness)), (written, json!({READ_BYTES: "5000000"})));
}

#[tokio::test(start_paused = true)]
async fn a_class_with_a_wrong_limit_changes_nothing() {
    let harness = Harness::with_agent().await;
    let id = harness.made("pvc-1").await;
    modify(&harness, &id, &[(READ_BYTES, "5M")]).await.unwrap();
    for wrong in [[(READ_BYTES, "0"), (WRITE_OPERATIONS, "9")], [(READ_BYTES, "6M"), (WRITE_OPERATIONS, "-1")]] {
        assert_eq!(refusal(modify(&harness, &id, &wrong).await).0, Code::InvalidArgument);
    }
    let (code, _) = refusal(modify(&harness, &id, &[(READ_BYTES, "6M"), (OPTION_CLASS, "raid")]).await);
    assert_eq!((code, annotations(&harness)), (Code::InvalidArgument, json!({READ_BYTES: "5000000"})));
}

#[tokio::test(start_paused = true)]
async fn unknown_volumes_are_not_modified() {
    let harness = Harness::new().await;
    assert_eq!(refusal(modify(&harness, "u-9", &[]).await).0, Code::NotFound);
    assert_eq!(refusal(modify(&harness, "", &[]).await).0, Code::InvalidArgument);
}
