//! The snapshotter over a fake API server and a fake driver.

use std::num::NonZeroUsize;
use std::time::Duration;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use topolvm_api::ApiFlavor;
use topolvm_kube::{EventPublisher, ReconcileMetrics};
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Kind;

use super::fake_driver::FakeDriver;
use crate::group_content::GROUP_SNAPSHOT_GROUP;
use crate::snapshot_content::NAMES;
use crate::{Snapshotter, SnapshotterArgs, SnapshotterContext};

pub(super) const CONTENTS: &str = "volumesnapshotcontents";
pub(super) const GROUP_CONTENTS: &str = "volumegroupsnapshotcontents";
const GROUP: &str = "snapshot.storage.k8s.io";

/// The snapshotter with the VolumeSnapshotClass and the VolumeGroupSnapshotClass `fast`.
pub(super) struct Harness {
    pub(super) server: ApiServer,
    pub(super) driver: FakeDriver,
    shutdown: CancellationToken,
    tasks: Tasks,
}

/// Serves VolumeSnapshotContents, as after the installation of their CustomResourceDefinition.
pub(super) fn serve_contents(server: &ApiServer) {
    server.serve(Kind::cluster_scoped(GROUP, "v1", "VolumeSnapshotContent", CONTENTS).with_status());
}

/// Serves VolumeGroupSnapshotContents and their classes.
pub(super) fn serve_groups(server: &ApiServer) {
    let kind = |kind, plural| Kind::cluster_scoped(GROUP_SNAPSHOT_GROUP, "v1", kind, plural);
    server.serve(kind("VolumeGroupSnapshotContent", GROUP_CONTENTS).with_status());
    server.serve(kind("VolumeGroupSnapshotClass", "volumegroupsnapshotclasses"));
}

impl Harness {
    /// Starts with these objects.
    pub(super) fn start(objects: &[Value]) -> Self {
        let server = ApiServer::new();
        serve_contents(&server);
        serve_groups(&server);
        server.serve(Kind::cluster_scoped(GROUP, "v1", "VolumeSnapshotClass", "volumesnapshotclasses"));
        server.apply_json(class_json("fast", &json!({"colour": "red"})));
        server.apply_json(group_class_json("fast", &json!({"colour": "red"})));
        for object in objects {
            server.apply_json(object.clone());
        }
        Self::start_on(server, FakeDriver::default())
    }

    /// Starts another process with what is there.
    pub(super) fn start_on(server: ApiServer, driver: FakeDriver) -> Self {
        Self::start_when(watch::channel(true).1, server, driver)
    }

    /// Starts with what is there, and a driver that is ready when this becomes true.
    pub(super) fn start_when(driver_ready: watch::Receiver<bool>, server: ApiServer, driver: FakeDriver) -> Self {
        let context = SnapshotterContext {
            client: server.client(),
            flavor: ApiFlavor::TopoLvm,
            controller: std::sync::Arc::new(driver.clone()),
            group_controller: std::sync::Arc::new(driver.clone()),
            driver_ready,
            events: EventPublisher::new(server.client(), "tester", "me".to_owned()),
            metrics: ReconcileMetrics::register(&mut Registry::default()),
            calls: RpcMetrics::register(&mut Registry::default()),
            now: || jiff::Timestamp::UNIX_EPOCH,
        };
        let args = SnapshotterArgs {
            snapshotter_worker_threads: NonZeroUsize::MIN,
            snapshotter_retry_interval_start: Duration::from_secs(1),
            snapshotter_retry_interval_max: Duration::from_mins(5),
            snapshotter_timeout: Duration::from_secs(10),
            snapshotter_snapshot_name_prefix: "snapshot".to_owned(),
            snapshotter_snapshot_name_uuid_length: None,
            snapshotter_groupsnapshot_name_prefix: "groupsnapshot".to_owned(),
            snapshotter_groupsnapshot_name_uuid_length: None,
        };
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        tasks.spawn("snapshotter", Snapshotter::new(context, args).run(shutdown.child_token()));
        Self { server, driver, shutdown, tasks }
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

    pub(super) fn content(&self) -> Value {
        self.server.get_json(CONTENTS, "", "content").unwrap()
    }

    pub(super) fn exists(&self) -> bool {
        self.server.get_json(CONTENTS, "", "content").is_some()
    }

    pub(super) fn status(&self) -> Value {
        self.content()["status"].clone()
    }

    /// The message of the error in the status.
    pub(super) fn error(&self) -> String {
        self.status()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn is_being_created(&self) -> bool {
        self.content()["metadata"]["annotations"].get(NAMES.being_created).is_some()
    }

    /// The type and reason of each Event, with its object, sorted.
    pub(super) fn events(&self) -> Vec<String> {
        let events = self.server.list_json("events.events.k8s.io");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let describe = |event: &Value| {
            format!("{} {} {}", text(&event["type"]), text(&event["reason"]), text(&event["regarding"]["name"]))
        };
        let mut described: Vec<_> = events.iter().map(describe).collect();
        described.sort();
        described
    }
}

pub(super) fn change(server: &ApiServer, changes: &Value) {
    server.edit(CONTENTS, "", "content", |content| json_patch::merge(content, changes));
}

/// snapshot-controller deletes the content of a VolumeSnapshot that is being deleted.
pub(super) fn delete(server: &ApiServer) {
    change(server, &json!({"metadata": {"annotations": {NAMES.being_deleted: "yes"}}}));
    server.delete(CONTENTS, "", "content");
}

/// Returns a VolumeSnapshotClass.
pub(super) fn class_json(name: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": name},
        "driver": "topolvm.io", "deletionPolicy": "Delete", "parameters": parameters,
    })
}

/// Returns a VolumeGroupSnapshotClass.
pub(super) fn group_class_json(name: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": name}, "driver": "topolvm.io", "deletionPolicy": "Delete", "parameters": parameters,
    })
}

/// Returns a Secret of the namespace `web` with a password.
pub(super) fn secret_json(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "web"},
        "data": {"password": "aHVudGVyMg=="},
    })
}
