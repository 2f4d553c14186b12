//! A fake API server and the real lvmd on a fake LVM, with a reconciler that does one step at a time.

use std::sync::Arc;

use jiff::Timestamp;
use lvmd_client::LvmdClient;
use node_orphans::{NodeAccess, OrphanHandler, OrphanSettings};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_node::reconcile::{Clients, FindDeviceUses, HostAccess, ReconcileError, Reconciler};
use topolvm_node::{NoLimits, VolumeDevices};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{LogicalVolumeBuilder, logical_volume};
use topolvm_testkit::lvm::FakeLvm;

use crate::fake_machine::Machine;
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, VG, unreachable_lvmd};

pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const LV: &str = "logicalvolumes.topolvm.io";
pub(crate) const FINALIZER: &str = "topolvm.io/logicalvolume";

/// Returns the time of these tests.
pub(crate) fn now() -> Timestamp {
    Timestamp::constant(1_767_225_600, 0)
}

/// A cluster whose node `n1` has 10 GiB.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) lvm: FakeLvm,
    pub(crate) lvmd: LvmdProcess,
    pub(crate) reconciler: Reconciler,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(ONE_CLASS).await
    }

    pub(crate) async fn with(config: &str) -> Self {
        let lvm = FakeLvm::new().with_group(VG, 10 * GIB).with_group("slow", 10 * GIB);
        // These tests change LVM behind the back of lvmd, and it is to see that at once.
        lvm.hide_devices();
        let lvmd = LvmdProcess::start(&lvm, config).await;
        let api = ApiServer::new();
        Self { reconciler: reconciler(&api, lvmd.client()), api, lvm, lvmd }
    }

    /// The agent is killed and started again.
    pub(crate) fn restart_agent(&mut self) {
        self.reconciler = reconciler(&self.api, self.lvmd.client());
    }

    /// lvmd goes away, for the agent at least.
    pub(crate) fn lose_lvmd(&mut self) {
        self.reconciler = reconciler(&self.api, unreachable_lvmd());
    }

    pub(crate) fn object(&self, name: &str) -> Value {
        self.api.get_json(LV, "", name).unwrap()
    }

    /// Returns the fields of the status that TopoLVM knows; the conditions have tests of their own.
    pub(crate) fn status(&self, name: &str) -> Value {
        without_conditions(&self.object(name)).unwrap_or_default()
    }

    pub(crate) async fn reconcile(&self, name: &str) -> Result<(), ReconcileError> {
        self.reconcile_seen(self.object(name)).await
    }

    /// With an object that the watch has shown, which may be old.
    pub(crate) async fn reconcile_seen(&self, seen: Value) -> Result<(), ReconcileError> {
        let volume: LogicalVolume = serde_json::from_value(seen).unwrap();
        self.reconciler.reconcile(Arc::new(volume)).await.map(drop)
    }

    pub(crate) fn resize(&self, name: &str, size: &str) {
        self.api.edit(LV, "", name, |object| *object.pointer_mut("/spec/size").unwrap() = json!(size));
    }
}

/// The status of an object, but for its conditions.
pub(crate) fn without_conditions(object: &Value) -> Option<Value> {
    let mut status = object.get("status")?.clone();
    status.as_object_mut()?.remove("conditions");
    Some(status)
}

pub(crate) fn reconciler(api: &ApiServer, lvmd: LvmdClient) -> Reconciler {
    reconciler_of(ApiFlavor::TopoLvm, api, lvmd, OrphanSettings::default())
}

pub(crate) fn reconciler_of(
    flavor: ApiFlavor,
    api: &ApiServer,
    lvmd: LvmdClient,
    orphans: OrphanSettings,
) -> Reconciler {
    let (node, client, mounter) = ("n1".to_owned(), api.client(), Machine::new(&FakeLvm::new()));
    let clients = Clients::new(flavor, node.clone(), client.clone(), lvmd.clone(), now);
    let (cluster, events) = (clients.cluster(), clients.event_recorder());
    let device_uses = FindDeviceUses::new(mounter.clone());
    let access = NodeAccess { flavor, node, cluster, events, lvmd, mounter, now };
    let orphans = Box::new(OrphanHandler::new(orphans, client, access));
    let (devices, io_limiter) = (VolumeDevices::default(), Arc::new(NoLimits));
    Reconciler::new(clients, HostAccess { device_uses, devices, io_limiter, orphans })
}

/// As the controller creates it.
pub(crate) fn fresh(name: &str) -> LogicalVolumeBuilder {
    bare(name).finalizer(FINALIZER).label("app.kubernetes.io/created-by", "topolvm-controller")
}

pub(crate) fn bare(name: &str) -> LogicalVolumeBuilder {
    logical_volume(name).uid("u1")
}
