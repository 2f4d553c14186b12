//! A provisioner over a fake API server and a fake driver.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use topolvm_kube::{CacheWriter, EventPublisher, ReconcileMetrics, watch_all};
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Kind;
use topolvm_testkit::fixtures::node;

use super::driver::FakeDriver;
use crate::{Progress, Provisioner, ProvisionerArgs, ProvisionerContext};

pub(super) const DRIVER: &str = "topolvm.io";
pub(super) const CLAIMS: &str = "persistentvolumeclaims";
pub(super) const VOLUMES: &str = "persistentvolumes";
pub(super) const EVENTS: &str = "events.events.k8s.io";

/// The provisioner with what it works with.
pub(super) struct Bench {
    pub(super) server: ApiServer,
    pub(super) driver: Arc<FakeDriver>,
    tasks: Tasks,
    shutdown: CancellationToken,
    context: ProvisionerContext,
    settings: ProvisionerArgs,
    provisioner: Provisioner,
    term: CancellationToken,
}

impl Bench {
    /// Starts it over a server with the node `n1`, where the driver is registered, and the StorageClass `fast`.
    pub(super) async fn start() -> Self {
        let server = server();
        Self::start_with(server, Arc::default()).await
    }

    /// Starts it over this server and driver.
    pub(super) async fn start_with(server: ApiServer, driver: Arc<FakeDriver>) -> Self {
        Self::start_when(watch::channel(true).1, server, driver).await
    }

    /// Starts it over this server and a driver that is ready when this becomes true.
    pub(super) async fn start_when(
        driver_ready: watch::Receiver<bool>,
        server: ApiServer,
        driver: Arc<FakeDriver>,
    ) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let client = server.client();
        let mut nodes = CacheWriter::<PartialObjectMeta<Node>>::default();
        let cache = nodes.as_reader();
        let watch = watch_all("Nodes", Api::all(client.clone()), shutdown.clone(), move |event| nodes.apply(&event));
        tasks.spawn("nodes", watch);
        let context = ProvisionerContext {
            client: client.clone(),
            driver: DRIVER.to_owned(),
            topology_key: "topology.topolvm.io/node".to_owned(),
            controller: driver.clone(),
            driver_ready,
            nodes: cache,
            identity: "me".to_owned(),
            events: EventPublisher::new(client.clone(), "tester", "me".to_owned()),
            metrics: ReconcileMetrics::register(&mut Registry::default()),
            calls: RpcMetrics::register(&mut Registry::default()),
            progress: Progress::default(),
        };
        let settings = ProvisionerArgs {
            provisioner_worker_threads: NonZeroUsize::new(4).unwrap(),
            provisioner_retry_interval_start: Duration::from_secs(1),
            provisioner_retry_interval_max: Duration::from_mins(5),
            provisioner_timeout: Duration::from_secs(10),
            provisioner_default_fstype: String::new(),
            provisioner_volume_name_prefix: "pvc".to_owned(),
        };
        let provisioner = Provisioner::new(context.clone(), settings.clone());
        let term = CancellationToken::new();
        let mut bench = Self { server, driver, tasks, shutdown, context, settings, provisioner, term };
        bench.watch_claims();
        bench.begin_term().await;
        bench
    }

    fn watch_claims(&self) {
        let mut subscriber = self.provisioner.subscriber();
        let claims = Api::<PersistentVolumeClaim>::all(self.server.client());
        let watch = watch_all("claims", claims, self.shutdown.clone(), move |event| subscriber(&event));
        self.tasks.spawn("claims", watch);
    }

    /// Has the watch of claims show a claim as it was earlier.
    pub(super) async fn show_claim(&self, claim: PersistentVolumeClaim) {
        self.provisioner.subscriber()(&Event::Apply(claim));
        settle().await;
    }

    /// Begins a term of this process as the provisioner.
    pub(super) async fn begin_term(&mut self) {
        self.term = self.shutdown.child_token();
        let (provisioner, term) = (self.provisioner.clone(), self.term.clone());
        self.tasks.spawn("provisioner", async move {
            provisioner.run(term.clone()).await?;
            // A task that ends takes the process down
            term.cancelled().await;
            std::future::pending::<()>().await;
            Ok(())
        });
        settle().await;
    }

    /// Ends the term.
    pub(super) async fn end_term(&self) {
        self.term.cancel();
        settle().await;
    }

    /// Ends the term and begins another one.
    pub(super) async fn lose_lease(&mut self) {
        self.end_term().await;
        self.begin_term().await;
    }

    /// Ends the term of the leader, which also watches the claims, and begins another one.
    pub(super) async fn lose_leadership(&mut self) {
        self.end_term().await;
        self.provisioner = Provisioner::new(self.context.clone(), self.settings.clone());
        self.watch_claims();
        self.begin_term().await;
    }

    /// Ends the process, and returns the server.
    pub(super) async fn stop(self) -> ApiServer {
        self.shutdown.cancel();
        settle().await;
        self.server
    }

    /// Applies a claim with the driver's name and waits until the provisioner has nothing to do.
    pub(super) async fn apply(&self, claim: Value) {
        self.server.apply_json(claim);
        settle().await;
    }

    pub(super) fn created(&self) -> usize {
        self.driver.created.lock().len()
    }

    pub(super) fn deleted(&self) -> Vec<String> {
        self.driver.deleted.lock().iter().map(|request| request.volume_id.clone()).collect()
    }

    pub(super) fn volume(&self, name: &str) -> Option<Value> {
        self.server.get_json(VOLUMES, "", name)
    }

    pub(super) fn claim(&self, name: &str) -> Value {
        self.server.get_json(CLAIMS, "default", name).unwrap()
    }

    /// Deletes a claim and releases its PersistentVolume, as Kubernetes does.
    pub(super) async fn release(&self, claim: &str, volume: &str) {
        self.server.delete(CLAIMS, "default", claim);
        self.set_phase(volume, "Released").await;
    }

    pub(super) async fn set_phase(&self, volume: &str, phase: &str) {
        self.server.edit(VOLUMES, "", volume, |object| object["status"]["phase"] = json!(phase));
        settle().await;
    }

    /// Returns reason and note of each Event.
    pub(super) fn events(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json(EVENTS);
        events.iter().map(|event| (text(&event["reason"]), text(&event["note"]))).collect()
    }

    /// Returns the reasons of the Events, sorted.
    pub(super) fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<_> = self.events().into_iter().map(|(reason, _)| reason).collect();
        reasons.sort();
        reasons
    }
}

/// Returns a server with the node `n1` and the StorageClass `fast`, and the definitions of snapshots.
pub(super) fn server() -> ApiServer {
    let server = ApiServer::new();
    let group = "snapshot.storage.k8s.io";
    server.serve(Kind::namespaced(group, "v1", "VolumeSnapshot", "volumesnapshots"));
    server.serve(Kind::cluster_scoped(group, "v1", "VolumeSnapshotContent", "volumesnapshotcontents"));
    let attributes = ("storage.k8s.io", "VolumeAttributesClass", "volumeattributesclasses");
    server.serve(Kind::cluster_scoped(attributes.0, "v1", attributes.1, attributes.2));
    server.apply_json(node("n1").build());
    server.apply_json(csi_node("n1", &[DRIVER]));
    server.apply_json(class("fast", json!({})));
    server
}

/// Returns the CSINode of a node whose kubelet has registered these drivers, with the label of ours.
pub(super) fn csi_node(name: &str, drivers: &[&str]) -> Value {
    let driver = |name: &&str| json!({"name": name, "nodeID": "n", "topologyKeys": ["topology.topolvm.io/node"]});
    let drivers: Vec<_> = drivers.iter().map(driver).collect();
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
           "spec": {"drivers": drivers}})
}

/// Returns a StorageClass whose claims wait for a node, with these fields.
pub(super) fn class(name: &str, fields: Value) -> Value {
    let mut class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
    });
    merge(&mut class, fields);
    class
}

/// Returns a claim of 1 GiB of the StorageClass `fast` with the node `n1`, and the UID `uid-NAME`.
pub(super) fn claim(name: &str, changes: Value) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER,
                "volume.kubernetes.io/selected-node": "n1",
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, changes);
    claim
}

fn merge(object: &mut Value, changes: Value) {
    let Value::Object(members) = changes else {
        *object = changes;
        return;
    };
    for (key, value) in members {
        // As in a merge patch
        match (value, object.as_object_mut()) {
            (Value::Null, Some(object)) => drop(object.remove(&key)),
            (value, _) => merge(&mut object[key], value),
        }
    }
}

/// Waits until all tasks are idle: under tokio's paused time a sleep ends only then.
pub(super) async fn settle() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
