//! The condition `Ready` that stands beside code and message in the status.

use std::sync::Arc;

use node_orphans::OrphanSettings;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::lvm::Fault;

use crate::cluster::{Cluster, GIB, LV, fresh, reconciler_of};
use crate::lvmd_process::VG;

/// Before the time that it is in these tests, and that time.
const THEN: &str = "2025-12-31T23:00:00Z";
const NOW: &str = "2026-01-01T00:00:00Z";

impl Cluster {
    /// The object's only condition.
    fn condition(&self, name: &str) -> Value {
        let object = self.object(name);
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array).unwrap();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
        conditions.first().cloned().unwrap()
    }

    /// The condition but for its time.
    fn said(&self, name: &str) -> Value {
        let mut condition = self.condition(name);
        condition.as_object_mut().unwrap().remove("lastTransitionTime");
        condition
    }

    /// As if the condition had become what it is some time ago.
    fn age(&self, name: &str) {
        self.api.edit(LV, "", name, |object| {
            *object.pointer_mut("/status/conditions/0/lastTransitionTime").unwrap() = json!(THEN);
        });
    }

    /// Returns the time of the condition's last transition.
    fn since(&self, name: &str) -> Value {
        self.condition(name).get("lastTransitionTime").cloned().unwrap()
    }
}

fn ready(generation: u64) -> Value {
    json!({"type": "Ready", "status": "True", "reason": "VolumeReady", "message": "", "observedGeneration": generation})
}

#[tokio::test]
async fn a_volume_that_is_made_is_ready_with_the_same_write() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.said("pvc-1"), ready(1));
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn ready_condition_of_a_failed_creation_has_the_status_message() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("11Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let condition = cluster.said("pvc-1");
    let message = cluster.status("pvc-1").get("message").cloned().unwrap();
    let expected = json!({
        "type": "Ready", "status": "False", "reason": "CreateFailed", "message": message, "observedGeneration": 1,
    });
    assert_eq!(condition, expected);
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn a_volume_that_grows_stays_ready_since_it_was_made() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.age("pvc-1");
    cluster.resize("pvc-1", "2Gi");
    cluster.api.clear_requests();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.said("pvc-1"), ready(2));
    assert_eq!(cluster.since("pvc-1"), THEN);
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn ready_condition_is_false_from_a_failed_expansion_to_success() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.age("pvc-1");
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    let condition = cluster.said("pvc-1");
    assert_eq!(
        (condition.get("status"), condition.get("reason")),
        (Some(&json!("False")), Some(&json!("ExpandFailed")))
    );
    assert_eq!(condition.get("message"), cluster.status("pvc-1").get("message"));
    assert_eq!(cluster.since("pvc-1"), NOW, "it has become false");

    cluster.age("pvc-1");
    cluster.lvm.extend_group(VG, 5 * GIB);
    cluster.lvm.fail("lvextend", 1, Fault::says("device-mapper: something is wrong"));
    cluster.reconcile("pvc-1").await.unwrap_err();
    assert_ne!(cluster.said("pvc-1").get("message"), condition.get("message"));
    assert_eq!(cluster.since("pvc-1"), THEN, "it is as false as before");

    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.said("pvc-1"), ready(2));
    assert_eq!(cluster.since("pvc-1"), NOW, "it has become true");
}

#[tokio::test]
async fn withdrawn_expansion_restores_ready_without_lvm() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let size = cluster.object("pvc-1")["spec"]["size"].as_str().unwrap().to_owned();
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    let processes = cluster.lvm.processes();
    cluster.resize("pvc-1", &size);
    cluster.reconcile("pvc-1").await.unwrap();
    let status = cluster.status("pvc-1");
    // What is zero or empty is left out
    assert_eq!((status.get("code"), status.get("message")), (None, None));
    assert_eq!(cluster.said("pvc-1").get("reason"), Some(&json!("VolumeReady")));
    assert_eq!(cluster.lvm.processes(), processes);
}

#[tokio::test]
async fn the_same_failure_again_is_no_change_of_the_object() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    cluster.age("pvc-1");
    let before = cluster.object("pvc-1");
    cluster.reconcile("pvc-1").await.unwrap_err();
    assert_eq!(cluster.object("pvc-1"), before);
}

#[tokio::test]
async fn a_failure_that_is_tried_again_is_not_ready_meanwhile() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").ready("u1", "1Gi").build());
    cluster.api.edit(LV, "", "pvc-1", |object| {
        *object.pointer_mut("/spec/size").unwrap() = json!("11Gi");
        let status = object.pointer_mut("/status").unwrap().as_object_mut().unwrap();
        status.insert("code".to_owned(), json!(8));
        status.insert("message".to_owned(), json!("full"));
    });
    let mut changes = cluster.api.subscribe(LV);
    cluster.reconcile("pvc-1").await.unwrap_err();
    let again = changes.next().await;
    let condition = again.object().pointer("/status/conditions/0").unwrap();
    assert_eq!((condition.get("status"), condition.get("reason")), (Some(&json!("False")), Some(&json!("Expanding"))));
}

#[tokio::test]
async fn ready_condition_of_topolvm_objects_comes_with_the_next_write() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.edit(LV, "", "pvc-1", |object| {
        object.pointer_mut("/status").unwrap().as_object_mut().unwrap().remove("conditions");
    });
    cluster.api.clear_requests();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.count("patch", LV), 0);
    cluster.resize("pvc-1", "2Gi");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.said("pvc-1"), ready(2));
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn reconcile_works_with_the_crd_of_topolvm_without_conditions() {
    let cluster = Cluster::start().await;
    cluster.api.prune_fields(LV, &["/status/conditions"]);
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    let failed = cluster.object("pvc-1");
    cluster.reconcile("pvc-1").await.unwrap_err();
    assert_eq!(cluster.object("pvc-1"), failed, "the same failure is no change");
    cluster.resize("pvc-1", "2Gi");
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.object("pvc-1").get("status"), Some(&json!({"volumeID": "u1", "currentSize": "2Gi"})));
    assert_eq!(cluster.api.count("patch", LV), 5, "one write each, and one for the attempt at the new size");
}

#[tokio::test]
async fn objects_of_the_older_api_group_have_the_condition_too() {
    let cluster = Cluster::start().await;
    let finalizer = "topolvm.cybozu.com/logicalvolume";
    let volume = fresh("pvc-1").legacy().finalizer(finalizer).build();
    cluster.api.apply_json(&volume);
    let agent = reconciler_of(ApiFlavor::Legacy, &cluster.api, cluster.lvmd.client(), OrphanSettings::default());
    agent.reconcile(Arc::new(volume)).await.unwrap();
    let object = cluster.api.get_json("logicalvolumes.topolvm.cybozu.com", "", "pvc-1").unwrap();
    assert_eq!(object.pointer("/status/conditions/0/reason"), Some(&json!("VolumeReady")));
}
