//! `/pod/mutate`.

use http::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{claim, creation_review, pod, storage_class};
use topolvm_webhook::CapacityResource;

use crate::harness::{GIB, Harness, MIB};

async fn harness() -> Harness {
    Harness::new(CapacityResource::Marker).await
}

/// Annotations by device class, and what the first container asks for, in a patch for a pod that had neither.
fn sizes(patch: &Value) -> (Value, Value) {
    let (annotations, resources) = (&patch[0], &patch[1]);
    assert_eq!(patch.as_array().unwrap().len(), 2);
    assert_eq!(annotations["path"], "/metadata/annotations");
    assert_eq!(resources["path"], "/spec/containers/0/resources");
    let resources = &resources["value"];
    assert_eq!(resources["requests"], resources["limits"]);
    (annotations["value"].clone(), resources["requests"]["topolvm.io/capacity"].clone())
}

#[tokio::test]
async fn the_patch_of_a_pod_with_one_claim() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").sized("100Gi").build());
    let patch = harness.pod(pod("user").claim("data").build()).await;
    insta::assert_snapshot!(serde_json::to_string_pretty(&patch).unwrap());
}

#[tokio::test]
async fn a_pod_without_volumes_is_not_changed() {
    assert_eq!(harness().await.pod(pod("user").build()).await, Value::Null);
}

#[tokio::test]
async fn a_pod_that_is_created_before_its_claim_is_not_changed() {
    assert_eq!(harness().await.pod(pod("user").claim("data").build()).await, Value::Null);
}

#[tokio::test]
async fn each_device_class_has_its_own_sum() {
    let harness = harness().await;
    for (name, class, size) in [
        ("a", "topolvm", "100Gi"),
        ("b", "ssd", "10Gi"),
        ("c", "hdd", "1Gi"),
        ("d", "ssd", "500Mi"),
        ("foreign", "foreign", "7Gi"),
    ] {
        harness.api.apply_json(claim(name).class(class).sized(size).build());
    }
    let pod = pod("user").claim("a").claim("b").claim("c").claim("d").claim("foreign").build();
    let (annotations, amount) = sizes(&harness.pod(pod).await);
    assert_eq!(
        annotations,
        json!({
            "capacity.topolvm.io/00default": (100 * GIB).to_string(),
            "capacity.topolvm.io/ssd": (10 * GIB + 500 * MIB).to_string(),
            "capacity.topolvm.io/hdd": GIB.to_string(),
        })
    );
    assert_eq!(amount, "1");
}

#[rstest]
#[case::exactly_as_asked(&["500Mi"], 500 * MIB)]
#[case::the_sum_is_not_rounded(&["100Gi", "2147483647"], 102 * GIB - 1)]
#[case::not_below_the_minimum(&["1Mi", "1Gi"], GIB + 32 * MIB)]
#[case::one_gib_where_no_size_is_asked(&["0"], GIB)]
#[tokio::test]
async fn claims_are_added_up(#[case] claims: &[&str], #[case] bytes: u64) {
    let harness = harness().await;
    let mut user = pod("user");
    for (index, size) in claims.iter().enumerate() {
        let name = format!("data{index}");
        harness.api.apply_json(claim(&name).class("topolvm").sized(size).build());
        user = user.claim(&name);
    }
    let (annotations, _) = sizes(&harness.pod(user.build()).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/00default": bytes.to_string()}));
}

#[tokio::test]
async fn a_claim_that_is_mounted_twice_is_one_volume() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let (annotations, _) = sizes(&harness.pod(pod("user").claim("data").claim("data").build()).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/00default": GIB.to_string()}));
}

#[rstest]
#[case::marker(CapacityResource::Marker, "1")]
#[case::bytes(CapacityResource::Bytes, &(6 * GIB).to_string())]
#[tokio::test]
async fn capacity_resource_is_a_marker_or_bytes_in_whole_gib(#[case] reading: CapacityResource, #[case] amount: &str) {
    let harness = Harness::new(reading).await;
    harness.api.apply_json(claim("a").class("topolvm").sized("1536Mi").build());
    harness.api.apply_json(claim("b").class("topolvm").sized("1536Mi").build());
    harness.api.apply_json(claim("c").class("ssd").sized("1025Mi").build());
    let (annotations, resource) = sizes(&harness.pod(pod("user").claim("a").claim("b").claim("c").build()).await);
    assert_eq!(resource, amount);
    let expected = [("00default", 3 * GIB), ("ssd", 1025 * MIB)];
    let expected = expected.map(|(class, bytes)| (format!("capacity.topolvm.io/{class}"), bytes.to_string()));
    assert_eq!(annotations, json!(std::collections::BTreeMap::from(expected)));
}

#[tokio::test]
async fn pod_webhook_changes_nothing_with_storage_capacity_tracking() {
    let harness = Harness::new(CapacityResource::None).await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    assert_eq!(harness.pod(pod("user").claim("data").build()).await, Value::Null);
    assert_eq!(harness.api.requests(), []);
}

#[tokio::test]
async fn other_resources_and_annotations_stay() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let mut pod = json!(pod("user").claim("data").annotation("team", "blue").build());
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}, "claims": [{"name": "gpu"}]});
    assert_eq!(
        harness.pod(pod).await,
        json!([
            {"op": "add", "path": "/metadata/annotations/capacity.topolvm.io~100default", "value": GIB.to_string()},
            {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"topolvm.io/capacity": "1"}},
            {"op": "add", "path": "/spec/containers/0/resources/requests/topolvm.io~1capacity", "value": "1"},
        ])
    );
}

#[tokio::test]
async fn foreign_capacity_values_are_overwritten() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let annotated = pod("user").claim("data").annotation("capacity.topolvm.io/00default", "7").build();
    let mut pod = json!(annotated);
    pod["spec"]["containers"][0]["resources"] =
        json!({"requests": {"topolvm.io/capacity": "9"}, "limits": {"topolvm.io/capacity": "1"}});
    assert_eq!(
        harness.pod(pod).await,
        json!([
            {"op": "add", "path": "/metadata/annotations/capacity.topolvm.io~100default", "value": GIB.to_string()},
            {"op": "add", "path": "/spec/containers/0/resources/limits/topolvm.io~1capacity", "value": "1"},
            {"op": "add", "path": "/spec/containers/0/resources/requests/topolvm.io~1capacity", "value": "1"},
        ])
    );
}

#[tokio::test]
async fn fields_that_we_do_not_know_are_not_touched() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let mut pod = json!(pod("user").claim("data").build());
    pod["metadata"]["fieldOfTomorrow"] = json!({"a": 1});
    pod["spec"]["fieldOfTomorrow"] = json!([1]);
    pod["spec"]["containers"][0]["fieldOfTomorrow"] = json!(true);
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["fieldOfTomorrow"] = json!("x");
    pod["spec"]["volumes"].as_array_mut().unwrap().push(json!({"name": "v", "volumeOfTomorrow": {}}));
    let patch: json_patch::Patch = serde_json::from_value(harness.pod(&pod).await).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch).unwrap();
    patched["metadata"].as_object_mut().unwrap().remove("annotations").unwrap();
    patched["spec"]["containers"][0].as_object_mut().unwrap().remove("resources").unwrap();
    assert_eq!(patched, pod);
}

#[tokio::test]
async fn pod_webhook_leaves_pods_with_a_bound_claim_unchanged() {
    let harness = harness().await;
    harness.api.apply_json(claim("bound").class("topolvm").bound_to("pv").build());
    harness.api.apply_json(claim("pending").class("topolvm").build());
    assert_eq!(harness.pod(pod("user").claim("bound").claim("pending").build()).await, Value::Null);
}

#[rstest]
#[case::no_class(claim("data"))]
#[case::empty_class(claim("data").class(""))]
#[case::class_of_another_driver(claim("data").class("foreign"))]
#[case::class_of_another_driver_and_bound(claim("data").class("foreign").bound_to("pv"))]
#[case::class_that_is_not_there(claim("data").class("missing"))]
#[tokio::test]
async fn claims_of_others_do_not_count(#[case] other: topolvm_testkit::fixtures::ClaimBuilder) {
    let harness = harness().await;
    harness.api.apply_json(other.build());
    assert_eq!(harness.pod(pod("user").claim("data").build()).await, Value::Null);
}

/// A pod with a generic ephemeral volume.
fn ephemeral(class: Option<&str>, size: &str) -> Value {
    let mut pod = json!(pod("user").build());
    pod["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
        "metadata": {"labels": {"app": "x"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": size}},
        },
    }}}]);
    pod
}

#[tokio::test]
async fn generic_ephemeral_volumes_count_without_a_claim() {
    let harness = harness().await;
    let (annotations, amount) = sizes(&harness.pod(ephemeral(Some("ssd"), "3Gi")).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/ssd": (3 * GIB).to_string()}));
    assert_eq!(amount, "1");
    assert_eq!(harness.pod(ephemeral(Some("foreign"), "3Gi")).await, Value::Null);
    assert_eq!(harness.pod(ephemeral(Some(""), "3Gi")).await, Value::Null);
    assert_eq!(harness.api.requests(), []);
}

#[tokio::test]
async fn an_ephemeral_volume_without_a_class_is_of_the_default_one() {
    let api = ApiServer::new();
    let default = |name: &str, made: &str, driver: &str| {
        let mut class = json!(storage_class(name).provisioner(driver).device_class(name).build());
        class["apiVersion"] = json!("storage.k8s.io/v1");
        class["kind"] = json!("StorageClass");
        class["metadata"]["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        class["metadata"]["creationTimestamp"] = json!(made);
        class
    };
    api.apply_json(storage_class("other").build());
    api.apply_json(default("old", "2025-01-01T00:00:00Z", "ebs.example"));
    api.apply_json(default("young", "2026-01-01T00:00:00Z", "topolvm.io"));
    let harness = Harness::on(api, CapacityResource::Marker, ApiFlavor::TopoLvm, true).await;
    let (annotations, _) = sizes(&harness.pod(ephemeral(None, "3Gi")).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/young": (3 * GIB).to_string()}));
}

#[tokio::test]
async fn a_device_class_that_is_empty_is_the_default_one() {
    let harness = harness().await;
    harness.api.apply_json(storage_class("empty").device_class("").build());
    harness.api.apply_json(claim("data").class("empty").build());
    let (annotations, _) = sizes(&harness.pod(pod("user").claim("data").build()).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/00default": GIB.to_string()}));
}

#[tokio::test]
async fn a_class_that_was_made_together_with_the_pod_is_known() {
    let harness = harness().await;
    // The watch does not report it
    harness.api.inject("watch", "storageclasses", usize::MAX, Failure::Hang);
    harness.api.close_watches();
    harness.api.apply_json(storage_class("new").device_class("ssd").build());
    harness.api.apply_json(claim("data").class("new").build());
    let (annotations, _) = sizes(&harness.pod(pod("user").claim("data").build()).await);
    assert_eq!(annotations, json!({"capacity.topolvm.io/ssd": GIB.to_string()}));
    assert_eq!(harness.api.count("get", "storageclasses"), 1);
}

#[tokio::test]
async fn the_legacy_group_has_its_own_names() {
    let api = ApiServer::new();
    api.apply_json(storage_class("old").legacy().device_class("ssd").build());
    api.apply_json(claim("data").class("old").build());
    let harness = Harness::on(api, CapacityResource::Marker, ApiFlavor::Legacy, true).await;
    assert_eq!(
        harness.pod(pod("user").claim("data").build()).await,
        json!([
            {"op": "add", "path": "/metadata/annotations",
             "value": {"capacity.topolvm.cybozu.com/ssd": GIB.to_string()}},
            {"op": "add", "path": "/spec/containers/0/resources", "value": {
                "limits": {"topolvm.cybozu.com/capacity": "1"}, "requests": {"topolvm.cybozu.com/capacity": "1"}}},
        ])
    );
}

#[tokio::test]
async fn only_the_claims_of_the_pod_are_read_and_each_once() {
    let harness = harness().await;
    for index in 0..100 {
        harness.api.apply_json(claim(&format!("data{index}")).class("topolvm").build());
    }
    harness.pod(pod("user").claim("data7").claim("data8").build()).await;
    let requests = harness.api.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|(verb, _)| *verb == "get"), "{requests:?}");
}

#[tokio::test]
async fn the_namespace_is_that_of_the_request_where_the_pod_has_none() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").namespace("other").class("topolvm").build());
    let mut review = creation_review("pods", pod("user").claim("data").build());
    review["request"]["namespace"] = json!("other");
    review["request"]["object"]["metadata"].as_object_mut().unwrap().remove("namespace");
    assert!(harness.ask("/pod/mutate", &review).await["patch"].is_string());
}

#[tokio::test]
async fn an_invalid_claim_name_leads_to_no_request() {
    let harness = harness().await;
    assert_eq!(harness.pod(pod("user").claim("../../../secrets/x").build()).await, Value::Null);
    assert_eq!(harness.api.requests(), []);
}

#[tokio::test]
async fn a_pod_without_containers_is_refused() {
    let mut pod = json!(pod("user").build());
    pod["spec"]["containers"] = json!([]);
    let response = harness().await.ask("/pod/mutate", &creation_review("pods", pod)).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"], json!({"code": 403, "message": "pod has no containers"}));
}

#[tokio::test]
async fn failure_of_the_api_server_is_returned() {
    let harness = harness().await;
    harness.api.fail_next("get", "persistentvolumeclaims", 1, 500);
    let response = harness.ask("/pod/mutate", &creation_review("pods", pod("user").claim("data").build())).await;
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(500)));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("topolvm: cannot read the claims and StorageClasses of the object"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_is_answered_before_it_gives_up() {
    let harness = harness().await;
    harness.api.inject("get", "persistentvolumeclaims", 1, Failure::Hang);
    let began = tokio::time::Instant::now();
    let response = harness.ask("/pod/mutate", &creation_review("pods", pod("user").claim("data").build())).await;
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(500)));
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
}

#[rstest]
#[case::not_json("{")]
#[case::not_a_review(r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#)]
#[case::no_request(r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#)]
#[tokio::test]
async fn bodies_that_are_no_review_are_bad_requests(#[case] body: &'static str) {
    let (status, _) = harness().await.post("/pod/mutate", body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[rstest]
#[case::no_object("/request/object", Value::Null)]
#[case::no_spec("/request/object/spec", Value::Null)]
#[case::volumes_that_are_no_list("/request/object/spec/volumes", json!({"a": 1}))]
#[case::annotations_that_are_no_object("/request/object/metadata/annotations", json!("a"))]
#[case::a_namespace_that_leads_elsewhere("/request/namespace", json!("default/secrets/x?a="))]
#[case::a_uid_without_end("/request/uid", json!("u".repeat(1000)))]
#[tokio::test]
async fn objects_that_cannot_be_read_are_bad_requests(#[case] path: &str, #[case] value: Value) {
    let mut review = creation_review("pods", pod("user").claim("data").annotation("a", "b").build());
    *review.pointer_mut(path).unwrap() = value;
    let (status, body) = harness().await.post("/pod/mutate", review.to_string()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
}

#[rstest]
#[case::an_update("/request/operation", json!("UPDATE"))]
#[case::a_subresource("/request/subResource", json!("status"))]
#[case::another_resource("/request/resource/resource", json!("services"))]
#[case::another_group("/request/resource/group", json!("example.com"))]
#[tokio::test]
async fn reviews_of_something_else_are_allowed_unchanged(#[case] path: &str, #[case] value: Value) {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let mut review = creation_review("pods", pod("user").claim("data").build());
    review["request"]["subResource"] = json!("");
    *review.pointer_mut(path).unwrap() = value;
    let response = harness.ask("/pod/mutate", &review).await;
    assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn the_older_version_of_a_review_is_answered_in_that_version() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    let mut review = creation_review("pods", pod("user").claim("data").build());
    review["apiVersion"] = json!("admission.k8s.io/v1beta1");
    assert!(harness.ask("/pod/mutate", &review).await["patch"].is_string());
}

#[tokio::test]
async fn a_body_without_end_is_not_kept() {
    let (status, _) = harness().await.post("/pod/mutate", vec![b' '; 9 << 20]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn calls_are_counted_by_their_outcome() {
    let harness = harness().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    harness.pod(pod("user").claim("data").build()).await;
    harness.pod(pod("user").build()).await;
    harness.claim(claim("data").class("foreign").build()).await;
    harness.post("/pod/mutate", "{").await;
    let calls = ["outcome=\"malformed\"} 1", "outcome=\"patched\"} 1", "outcome=\"unchanged\"} 1"]
        .map(|rest| format!("topolvm_webhook_calls_total{{webhook=\"pod\",{rest}"));
    let claims = "topolvm_webhook_calls_total{webhook=\"pvc\",outcome=\"unchanged\"} 1".to_owned();
    assert_eq!(harness.calls(), calls.into_iter().chain([claims]).collect::<Vec<_>>());
}
