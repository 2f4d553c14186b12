//! The resizer over a fake API server and a fake driver.

use std::num::NonZeroUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use topolvm_api::ApiFlavor;
use topolvm_kube::{EventPublisher, ReconcileMetrics, watch_all};
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Kind;

use super::fake_driver::FakeDriver;
use crate::{Resizer, ResizerArgs, ResizerContext};

pub(super) const CLAIMS: &str = "persistentvolumeclaims";
pub(super) const VOLUMES: &str = "persistentvolumes";
pub(super) const CLASSES: &str = "volumeattributesclasses";

/// The resizer with the claim `data` of 1 GiB and its volume.
pub(super) struct Harness {
    pub(super) server: ApiServer,
    pub(super) driver: FakeDriver,
    /// The process.
    shutdown: CancellationToken,
    tasks: Tasks,
    resizer: Resizer,
}

impl Harness {
    /// Starts with a filesystem.
    pub(super) fn start() -> Self {
        Self::start_with(&json!({}), &json!({}))
    }

    /// Starts with a device.
    pub(super) fn start_with_block() -> Self {
        Self::start_with(&json!({}), &json!({"spec": {"volumeMode": "Block"}}))
    }

    /// Starts with these changes of claim and PersistentVolume.
    pub(super) fn start_with(claim: &Value, volume: &Value) -> Self {
        let server = ApiServer::new();
        server.serve(Kind::cluster_scoped("storage.k8s.io", "v1", "VolumeAttributesClass", CLASSES));
        server.apply_json(changed(claim_json(), claim));
        server.apply_json(changed(volume_json(), volume));
        Self::start_on(server, FakeDriver::default())
    }

    /// Starts another process with what is there.
    pub(super) fn start_on(server: ApiServer, driver: FakeDriver) -> Self {
        Self::start_when(watch::channel(true).1, server, driver)
    }

    /// Starts with what is there, and a driver that is ready when this becomes true.
    pub(super) fn start_when(driver_ready: watch::Receiver<bool>, server: ApiServer, driver: FakeDriver) -> Self {
        let context = ResizerContext {
            client: server.client(),
            flavor: ApiFlavor::TopoLvm,
            controller: std::sync::Arc::new(driver.clone()),
            driver_ready,
            events: EventPublisher::new(server.client(), "tester", "me".to_owned()),
            metrics: ReconcileMetrics::register(&mut Registry::default()),
            calls: RpcMetrics::register(&mut Registry::default()),
            now: || jiff::Timestamp::UNIX_EPOCH,
        };
        let args = ResizerArgs {
            resizer_workers: NonZeroUsize::MIN,
            resizer_retry_interval_start: Duration::from_secs(1),
            resizer_retry_interval_max: Duration::from_mins(5),
            resizer_timeout: Duration::from_secs(10),
        };
        let resizer = Resizer::new(context, args);
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let mut subscriber = resizer.subscriber();
        let claims = Api::<PersistentVolumeClaim>::all(server.client());
        tasks.spawn("claims", watch_all("claims", claims, shutdown.clone(), move |event| subscriber(&event)));
        let harness = Self { server, driver, shutdown, tasks, resizer };
        harness.begin_term(harness.shutdown.child_token());
        harness
    }

    /// Has the resizer run until `term` is cancelled.
    pub(super) fn begin_term(&self, term: CancellationToken) {
        let resizer = self.resizer.clone();
        self.tasks.spawn("resizer", async move {
            resizer.run(term).await;
            Ok(())
        });
    }

    /// Ends the process.
    pub(super) async fn end(self) -> (ApiServer, FakeDriver) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
        (self.server, self.driver)
    }

    /// Waits so long: under tokio's paused time what is due is done then.
    pub(super) async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(super) fn claim(&self) -> Value {
        self.server.get_json(CLAIMS, "default", "data").unwrap()
    }

    pub(super) fn volume(&self) -> Value {
        self.server.get_json(VOLUMES, "", "pvc-1").unwrap()
    }

    /// A user, the kubelet or another controller changes the claim.
    pub(super) fn change_claim(&self, changes: &Value) {
        change_claim(&self.server, changes);
    }

    /// A user requests a size.
    pub(super) fn request(&self, size: &str) {
        request(&self.server, size);
    }

    /// A user requests a VolumeAttributesClass.
    pub(super) fn request_class(&self, class: Option<&str>) {
        self.change_claim(&json!({"spec": {"volumeAttributesClassName": class}}));
    }

    /// Creates a VolumeAttributesClass with one parameter.
    pub(super) fn create_class(&self, name: &str, value: &str) {
        self.server.apply_json(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
            "driverName": "topolvm.io", "parameters": {"iops": value},
        }));
    }

    /// The kubelet has grown the filesystem to this size.
    pub(super) fn finish_on_node(&self, size: &str) {
        let state = json!({"capacity": {"storage": size}, "allocatedResourceStatuses": null, "conditions": null});
        self.change_claim(&json!({"status": state}));
    }

    /// The size of the claim, the size with which an expansion has begun, and its state.
    pub(super) fn progress(&self) -> (String, String, String) {
        let claim = self.claim();
        let text = |pointer| claim.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let capacity = text("/status/capacity/storage");
        (capacity, text("/status/allocatedResources/storage"), text("/status/allocatedResourceStatuses/storage"))
    }

    /// The size of the PersistentVolume.
    pub(super) fn volume_size(&self) -> Value {
        self.volume()["spec"]["capacity"]["storage"].clone()
    }

    /// The types of the claim's conditions that are true.
    pub(super) fn conditions(&self) -> Vec<String> {
        let claim = self.claim();
        let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_true = |condition: &&Value| condition["status"] == "True";
        let kind = |condition: &Value| condition["type"].as_str().unwrap_or_default().to_owned();
        conditions.iter().filter(is_true).map(kind).collect()
    }

    /// The message of a condition.
    pub(super) fn message(&self, kind: &str) -> String {
        let claim = self.claim();
        let mut conditions = claim["status"]["conditions"].as_array().into_iter().flatten();
        let found = conditions.find(|condition| condition["type"] == kind);
        found.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned()
    }

    /// The reasons of Events, sorted.
    pub(super) fn reasons(&self) -> Vec<String> {
        let events = self.server.list_json("events.events.k8s.io");
        let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
        let mut reasons: Vec<_> = events.iter().map(reason).collect();
        reasons.sort();
        reasons
    }
}

pub(super) fn change_claim(server: &ApiServer, changes: &Value) {
    server.edit(CLAIMS, "default", "data", |claim| json_patch::merge(claim, changes));
}

pub(super) fn request(server: &ApiServer, size: &str) {
    change_claim(server, &json!({"spec": {"resources": {"requests": {"storage": size}}}}));
}

fn changed(mut object: Value, changes: &Value) -> Value {
    json_patch::merge(&mut object, changes);
    object
}

fn claim_json() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", "uid": "u"},
        "spec": {"storageClassName": "fast", "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

fn volume_json() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1", "uid": "v"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "volumeMode": "Filesystem",
            "claimRef": {"namespace": "default", "name": "data", "uid": "u"},
            "csi": {"driver": "topolvm.io", "volumeHandle": "id-1", "fsType": "xfs"},
        },
        "status": {"phase": "Bound"},
    })
}
