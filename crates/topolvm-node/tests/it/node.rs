//! A node agent's CSI service over the real lvmd, a fake LVM and a fake machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use kube::runtime::watcher::Event;
use lvmd_client::{DeviceClasses, LvmdClient};
use published_pods::PublishedPods;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::{Request, Status};
use topolvm_api::ApiFlavor;
use topolvm_kube::LogicalVolumeWriter;
use topolvm_node::csi::{Agent, AgentOptions, NodeService};
use topolvm_node::{NoLimits, Volumes};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use topolvm_proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability, VolumeUsage,
};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::cluster::LV;
use crate::fake_machine::Machine;
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, VG};

pub(crate) const GIB: u64 = 1 << 30;

/// A node with one volume of 1 GiB, `v1`, that is not published.
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    pub(crate) api: ApiServer,
    pub(crate) lvm: FakeLvm,
    pub(crate) machine: Machine,
    pub(crate) service: Arc<NodeService<Machine>>,
    pub(crate) tasks: Tasks,
    pub(crate) shutdown: CancellationToken,
    pub(crate) device_classes: watch::Sender<DeviceClasses>,
    own: Mutex<LogicalVolumeWriter>,
    volumes: Volumes,
    lvmd: LvmdProcess,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(&mut |_| {}).await
    }

    /// Spoils the watch of LogicalVolumes, which has shown `v1`.
    pub(crate) async fn start_with(spoil: &mut dyn FnMut(&mut LogicalVolumeWriter)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lvm = FakeLvm::new().with_group(VG, 10 * GIB);
        // These tests change LVM behind the back of lvmd, and it is to see that at once.
        lvm.hide_devices();
        lvm.add_volume(VG, "v1", FakeVolume::thick(GIB));
        let lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await;
        let api = ApiServer::new();
        let flavor = ApiFlavor::TopoLvm;
        let volume = logical_volume("pvc-1").uid("v1").ready("v1", "1Gi").build();
        api.apply_json(&volume);
        let mut own = LogicalVolumeWriter::default();
        for event in [Event::Init, Event::InitApply(volume), Event::InitDone] {
            own.apply(event);
        }
        spoil(&mut own);
        let machine = Machine::new(&lvm);
        std::fs::create_dir(dir.path().join("old")).unwrap();
        let volumes = Volumes::new(flavor, own.as_reader(), api.client(), "n1".to_owned());
        let device_classes = watch::Sender::new(DeviceClasses { is_connected: true, ..DeviceClasses::default() });
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let service = service(&volumes, lvmd.client(), &machine, &device_classes, dir.path(), &tasks, false);
        let own = Mutex::new(own);
        Self { dir, api, lvm, machine, service, tasks, shutdown, device_classes, own, volumes, lvmd }
    }

    /// Another agent on the same machine, which stages volumes or does not.
    pub(crate) fn restart(&mut self, stages: bool) {
        let Self { volumes, lvmd, machine, device_classes, dir, tasks, .. } = &*self;
        self.service = service(volumes, lvmd.client(), machine, device_classes, dir.path(), tasks, stages);
    }

    /// Another agent on the same machine, to which every volume is counted that lvmd lists.
    pub(crate) fn restart_counting(&mut self) -> Arc<AtomicUsize> {
        let listed = Arc::new(AtomicUsize::new(0));
        let Self { volumes, lvmd, machine, device_classes, dir, tasks, .. } = &*self;
        let lvmd = lvmd.client_counting(&listed);
        self.service = service(volumes, lvmd, machine, device_classes, dir.path(), tasks, false);
        listed
    }

    /// The watch shows `v1` as the API server has it.
    pub(crate) fn watch(&self) {
        let volume = serde_json::from_value(self.object("pvc-1")).unwrap();
        self.own.lock().unwrap().apply(Event::Apply(volume));
    }

    /// A LogicalVolume as the API server has it.
    pub(crate) fn object(&self, name: &str) -> Value {
        self.api.get_json(LV, "", name).unwrap()
    }

    /// Sets an annotation of `v1`, as an administrator does.
    pub(crate) fn annotate(&self, key: &str, value: &str) {
        self.api.edit(LV, "", "pvc-1", |object| {
            let metadata = object.get_mut("metadata").and_then(Value::as_object_mut).unwrap();
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            annotations.as_object_mut().unwrap().insert(key.to_owned(), json!(value));
        });
    }

    /// An annotation of `v1`; null where it has none.
    pub(crate) fn annotation(&self, key: &str) -> Value {
        self.object("pvc-1").pointer("/metadata/annotations").and_then(|all| all.get(key)).cloned().unwrap_or_default()
    }

    /// Another lvmd in the place of the first, with other device classes.
    pub(crate) async fn reconfigure(&mut self, config: &str) {
        self.lvmd = LvmdProcess::start(&self.lvm, config).await;
        self.restart(false);
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.dir.path().join("pod").join("mount")
    }

    pub(crate) fn filesystem(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "v1".to_owned(),
            target_path: self.target().display().to_string(),
            volume_capability: Some(capability(AccessType::Mount(MountVolume {
                mount_flags: vec!["noatime".to_owned(), "discard".to_owned()],
                ..MountVolume::default()
            }))),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub(crate) fn block(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_capability: Some(capability(AccessType::Block(BlockVolume {}))),
            ..self.filesystem()
        }
    }

    pub(crate) async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        self.service.node_publish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn unpublish(&self) -> Result<(), Status> {
        let request =
            NodeUnpublishVolumeRequest { volume_id: "v1".to_owned(), target_path: self.target().display().to_string() };
        self.service.node_unpublish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn stats(&self, id: &str, path: &Path) -> Result<Vec<VolumeUsage>, Status> {
        Ok(self.usage_and_condition(id, path).await?.usage)
    }

    pub(crate) async fn usage_and_condition(
        &self,
        id: &str,
        path: &Path,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: path.display().to_string(),
            ..NodeGetVolumeStatsRequest::default()
        };
        let response = self.service.node_get_volume_stats(Request::new(request)).await?;
        Ok(response.into_inner())
    }

    pub(crate) async fn expand(&self, id: &str, path: &Path, bytes: u64) -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange { required_bytes: i64::try_from(bytes).unwrap(), limit_bytes: 0 }),
            ..NodeExpandVolumeRequest::default()
        };
        let response = self.service.node_expand_volume(Request::new(request)).await?;
        Ok(response.into_inner().capacity_bytes)
    }

    /// A copy of the volume, `v2`, known to the watch through the API server.
    pub(crate) fn copy_volume(&self) -> PathBuf {
        self.lvm.add_volume(VG, "v2", FakeVolume::thick(GIB));
        self.api.apply_json(logical_volume("pvc-2").uid("v2").from_source("pvc-1", "rw").ready("v2", "1Gi").build());
        Path::new("/dev").join(VG).join("v2")
    }

    /// Grows the LV as lvmd does when the controller has grown the object.
    pub(crate) fn grow_lv(&self, bytes: u64) {
        let extents = FakeVolume::thick(bytes).extents;
        self.lvm.edit_volume(VG, "v1", |volume| {
            volume.extents = extents;
            volume.allocated = extents;
        });
    }
}

fn service(
    volumes: &Volumes,
    lvmd: LvmdClient,
    machine: &Machine,
    device_classes: &watch::Sender<DeviceClasses>,
    dir: &Path,
    tasks: &Tasks,
    stages: bool,
) -> Arc<NodeService<Machine>> {
    let options = AgentOptions {
        legacy_devices: dir.join("old"),
        stages,
        published_pods: PublishedPods::default(),
        io_limiter: Arc::new(NoLimits),
    };
    let agent = Agent::new(volumes.clone(), lvmd, machine.clone(), device_classes.subscribe(), options);
    Arc::new(NodeService::new(ApiFlavor::TopoLvm, "n1".to_owned(), Arc::new(agent), tasks.clone()))
}

pub(crate) fn capability(access_type: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

pub(crate) fn device() -> PathBuf {
    Path::new("/dev").join(VG).join("v1")
}

pub(crate) fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
