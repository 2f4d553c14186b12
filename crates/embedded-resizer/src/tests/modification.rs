use std::collections::HashMap;

use serde_json::{Value, json};
use tonic::Code;
use topolvm_testkit::api_server::Kind;

use super::fake_driver::Call;
use super::harness::{CLASSES, Harness, change_claim};

impl Harness {
    /// The parameters with which the driver was called, in order.
    fn parameters(&self) -> Vec<String> {
        let parameter = |call: Call| match call {
            Call::Modify(parameters, _) => parameters["iops"].clone(),
            Call::Expand { .. } => panic!("{call:?}"),
        };
        self.driver.calls().into_iter().map(parameter).collect()
    }

    /// The class that the claim has, the state of a modification, and the class that it is to have.
    fn classes(&self) -> (String, String, String) {
        let claim = self.claim();
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let target = text("/status/modifyVolumeStatus/targetVolumeAttributesClassName");
        (text("/status/currentVolumeAttributesClassName"), text("/status/modifyVolumeStatus/status"), target)
    }
}

fn triple(current: &str, state: &str, target: &str) -> (String, String, String) {
    (current.to_owned(), state.to_owned(), target.to_owned())
}

/// A claim that requests the class `fast`, which exists.
async fn requested(harness: &Harness) {
    harness.create_class("fast", "1000");
    harness.request_class(Some("fast"));
    harness.wait(1).await;
}

#[tokio::test(start_paused = true)]
async fn class_is_applied_to_the_volume_of_its_claim() {
    let harness = Harness::start();
    requested(&harness).await;
    assert_eq!((harness.parameters(), harness.classes()), (vec!["1000".to_owned()], triple("fast", "", "")));
    assert_eq!(harness.volume()["spec"]["volumeAttributesClassName"], "fast");
    assert_eq!(
        (harness.conditions(), harness.reasons()),
        (vec![], events(&["VolumeModify", "VolumeModifySuccessful"]))
    );
    harness.create_class("slow", "10");
    harness.request_class(Some("slow"));
    harness.wait(3600).await;
    assert_eq!(
        (harness.parameters(), harness.classes()),
        (vec!["1000".to_owned(), "10".to_owned()], triple("slow", "", ""))
    );
    harness.end().await;
}

fn events(reasons: &[&str]) -> Vec<String> {
    reasons.iter().map(|&reason| reason.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn infeasible_class_is_retried_slowly_and_can_be_taken_back() {
    let harness = Harness::start();
    requested(&harness).await;
    harness.create_class("wrong", "none");
    harness.driver.fail_next(2, Code::InvalidArgument, "unknown limit");
    harness.request_class(Some("wrong"));
    harness.wait(299).await;
    assert_eq!(
        (harness.parameters(), harness.classes()),
        (events(&["1000", "none"]), triple("fast", "Infeasible", "wrong"))
    );
    assert_eq!(harness.conditions(), ["ModifyingVolume", "ModifyVolumeError"]);
    assert_eq!(harness.message("ModifyVolumeError"), "unknown limit");
    let claim = harness.claim();
    assert_eq!(claim["status"]["conditions"][1]["reason"], "InvalidArgument");
    harness.wait(10).await;
    assert_eq!(harness.parameters(), ["1000", "none", "none"]);

    harness.request_class(Some("fast"));
    harness.wait(1).await;
    assert_eq!((harness.parameters().len(), harness.classes()), (4, triple("fast", "", "")));
    assert_eq!(harness.conditions(), Vec::<String>::new());
    harness.wait(3600).await;
    assert_eq!(harness.parameters(), ["1000", "none", "none", "1000"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn class_of_an_uncertain_call_is_applied_first() {
    for code in [Code::Aborted, Code::DeadlineExceeded, Code::Unavailable] {
        let harness = Harness::start();
        harness.create_class("slow", "10");
        harness.driver.fail_next(1, code, "not yet");
        let server = harness.server.clone();
        let other = json!({"spec": {"volumeAttributesClassName": "slow"}});
        harness.driver.during_next(move || change_claim(&server, &other));
        requested(&harness).await;
        harness.wait(3).await;
        assert_eq!(
            (harness.parameters(), harness.classes()),
            (events(&["1000", "1000", "10"]), triple("slow", "", ""))
        );
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn class_of_a_final_failure_gives_way_to_the_request() {
    let harness = Harness::start();
    harness.create_class("slow", "10");
    harness.driver.fail_next(2, Code::Internal, "broken");
    requested(&harness).await;
    assert_eq!(harness.classes(), triple("", "InProgress", "fast"));
    harness.wait(1).await;
    assert_eq!(harness.parameters(), ["1000", "1000"]);
    harness.request_class(Some("slow"));
    harness.wait(1).await;
    assert_eq!((harness.parameters(), harness.classes()), (events(&["1000", "1000", "10"]), triple("slow", "", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn restart_repeats_the_class_of_the_status() {
    let harness = Harness::start();
    harness.create_class("slow", "10");
    harness.driver.hang_next();
    requested(&harness).await;
    harness.request_class(Some("slow"));
    let (server, driver) = harness.end().await;
    let harness = Harness::start_on(server, driver);
    harness.wait(1).await;
    assert_eq!((harness.parameters(), harness.classes()), (events(&["1000", "1000", "10"]), triple("slow", "", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn class_that_is_missing_or_foreign_is_awaited() {
    let harness = Harness::start();
    harness.request_class(Some("fast"));
    harness.wait(10).await;
    assert_eq!((harness.parameters(), harness.classes()), (vec![], triple("", "Pending", "")));
    let notes = harness.server.event_notes("VolumeModifyFailed");
    let missing = "VolumeAttributesClass fast does not exist; create it, or request another class in the claim";
    assert_eq!(notes, [missing]);
    harness.server.apply_json(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "fast"},
        "driverName": "ebs.example",
    }));
    harness.wait(60).await;
    assert_eq!((harness.parameters(), harness.server.event_notes("VolumeModifyFailed").len()), (vec![], 2));
    harness.server.delete(CLASSES, "", "fast");
    harness.create_class("fast", "1000");
    harness.wait(300).await;
    assert_eq!((harness.parameters(), harness.classes()), (events(&["1000"]), triple("fast", "", "")));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn beta_version_of_classes_is_read_where_it_is_served() {
    let harness = Harness::start();
    harness.server.withdraw(CLASSES);
    harness.server.serve(Kind::cluster_scoped("storage.k8s.io", "v1beta1", "VolumeAttributesClass", CLASSES));
    harness.server.apply_json(json!({
        "apiVersion": "storage.k8s.io/v1beta1", "kind": "VolumeAttributesClass", "metadata": {"name": "fast"},
        "driverName": "topolvm.io", "parameters": {"iops": "7"},
    }));
    harness.request_class(Some("fast"));
    harness.wait(1).await;
    assert_eq!(harness.parameters(), ["7"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_without_a_class_keeps_its_volume_as_it_is() {
    let harness = Harness::start();
    harness.driver.fail_next(1, Code::InvalidArgument, "unknown limit");
    requested(&harness).await;
    assert_eq!(harness.conditions(), ["ModifyingVolume", "ModifyVolumeError"]);
    harness.request_class(None);
    harness.wait(3600).await;
    assert_eq!((harness.parameters(), harness.conditions()), (events(&["1000"]), events(&["ModifyVolumeError"])));
    let canceled = harness.server.event_notes("VolumeModifyCanceled");
    assert_eq!(canceled.len(), 1, "{canceled:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn secret_of_the_annotation_comes_before_that_of_the_volume() {
    let name = "volume.kubernetes.io/controller-modify-secret-name";
    let namespace = "volume.kubernetes.io/controller-modify-secret-namespace";
    let volume = json!({
        "metadata": {"annotations": {name: "modify", namespace: "vault"}},
        "spec": {"csi": {"controllerExpandSecretRef": {"name": "expand", "namespace": "vault"}}},
    });
    let harness = Harness::start_with(&json!({}), &volume);
    for (secret, value) in [("modify", "MQ=="), ("expand", "Mg==")] {
        harness.server.apply_json(json!({"apiVersion": "v1", "kind": "Secret", "data": {"token": value},
                                         "metadata": {"name": secret, "namespace": "vault"}}));
    }
    requested(&harness).await;
    let Call::Modify(_, secrets) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(*secrets, HashMap::from([("token".to_owned(), "1".to_owned())]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn expansion_and_modification_of_a_claim_take_turns() {
    let harness = Harness::start_with_block();
    harness.create_class("fast", "1000");
    let both = json!({"spec": {"volumeAttributesClassName": "fast", "resources": {"requests": {"storage": "3Gi"}}}});
    harness.change_claim(&both);
    harness.wait(1).await;
    assert_eq!((harness.driver.calls().len(), harness.classes()), (2, triple("fast", "", "")));
    assert_eq!(harness.progress().0, "3Gi");
    assert!(!harness.reasons().iter().any(|reason| reason.ends_with("Failed")), "{:?}", harness.reasons());
    harness.end().await;
}
