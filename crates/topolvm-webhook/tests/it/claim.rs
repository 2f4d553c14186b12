//! `/pvc/mutate`.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{ClaimBuilder, claim, storage_class};
use topolvm_webhook::CapacityResource;

use crate::harness::Harness;

#[rstest]
#[case::the_first(claim("data").class("topolvm"),
    json!([{"op": "add", "path": "/metadata/finalizers", "value": ["topolvm.io/pvc"]}]))]
#[case::beside_others(claim("data").class("ssd").finalizer("kubernetes.io/pvc-protection"),
    json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "topolvm.io/pvc"}]))]
#[case::there_already(claim("data").class("topolvm").finalizer("topolvm.io/pvc"), Value::Null)]
#[case::of_another_driver(claim("data").class("foreign"), Value::Null)]
#[case::of_no_class(claim("data"), Value::Null)]
#[case::of_the_empty_class(claim("data").class(""), Value::Null)]
#[case::of_a_class_that_is_not_there(claim("data").class("missing"), Value::Null)]
#[tokio::test]
async fn new_claims_of_ours_get_the_finalizer(#[case] claim: ClaimBuilder, #[case] patch: Value) {
    let harness = Harness::new(CapacityResource::Marker).await;
    assert_eq!(harness.claim(claim.build()).await, patch);
}

#[tokio::test]
async fn the_legacy_group_has_a_finalizer_of_its_own() {
    let api = ApiServer::new();
    api.apply_json(storage_class("old").legacy().build());
    let harness = Harness::on(api, CapacityResource::Marker, ApiFlavor::Legacy, true).await;
    let patch = harness.claim(claim("data").class("old").build()).await;
    assert_eq!(patch[0]["value"], json!(["topolvm.cybozu.com/pvc"]));
}

#[tokio::test]
async fn claim_webhook_adds_no_finalizer_without_the_setting() {
    let api = ApiServer::new();
    api.apply_json(storage_class("topolvm").build());
    let harness = Harness::on(api, CapacityResource::Marker, ApiFlavor::TopoLvm, false).await;
    assert_eq!(harness.claim(claim("data").class("topolvm").build()).await, Value::Null);
}
