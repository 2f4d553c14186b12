//! The node agent over a real LVM, with a LogicalVolume for the LV `v1` in `myvg1`.

use std::path::Path;
use std::sync::Arc;

use kube::runtime::watcher::Event;
use linux_mount::SystemMounter;
use lvmd::routes;
use lvmd_client::{DeviceClasses, LvmdClient};
use lvmd_config::Config;
use lvmd_config::tags::InstanceId;
use lvmd_engine::Engine;
use published_pods::PublishedPods;
use tokio::sync::watch;
use tonic::{Request, Status};
use topolvm_api::ApiFlavor;
use topolvm_kube::LogicalVolumeWriter;
use topolvm_node::csi::{Agent, AgentOptions, NodeService};
use topolvm_node::{NoLimits, Volumes};
use topolvm_proto::csi::node_server::Node as _;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType};
use topolvm_proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability,
};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use crate::fixture::lvm;

const CLASS: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";
/// Path at which the volume is published.
pub(crate) const TARGET: &str = "/run/target/mount";

/// A node agent without sockets.
pub(crate) struct NodeAgent {
    pub(crate) api: ApiServer,
    node: NodeService<SystemMounter>,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl NodeAgent {
    /// Starts one whose volume has this size.
    pub(crate) async fn start(size: &str) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let classes = Config::parse("lvmd.yaml", CLASS).unwrap().classes;
        let maker = InstanceId::new(Path::new("lvmd.sock"), None);
        let engine = Engine::start(lvm(), classes, maker, &tasks, shutdown.clone()).await.unwrap();
        let lvmd = LvmdClient::over(routes(&engine));
        let (api, mut own) = (ApiServer::new(), LogicalVolumeWriter::default());
        let volume = logical_volume("pvc-1").on("n1").uid("v1").ready("v1", size).build();
        api.apply_json(volume.clone());
        for event in [Event::Init, Event::InitApply(volume), Event::InitDone] {
            own.apply(event);
        }
        let volumes = Volumes::new(ApiFlavor::TopoLvm, own.as_reader(), api.client(), "n1".to_owned());
        let device_classes = watch::Sender::new(DeviceClasses::default());
        let options = AgentOptions {
            legacy_devices: "/dev/topolvm".into(),
            stages: false,
            published_pods: PublishedPods::default(),
            io_limiter: Arc::new(NoLimits),
        };
        let agent = Agent::new(volumes, lvmd, SystemMounter::new(), device_classes.subscribe(), options);
        let node = NodeService::new(ApiFlavor::TopoLvm, "n1".to_owned(), Arc::new(agent), tasks.clone());
        Self { api, node, tasks, shutdown }
    }

    pub(crate) async fn publish(&self, access_type: AccessType) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: "v1".to_owned(),
            target_path: TARGET.to_owned(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(access_type),
                access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            }),
            ..NodePublishVolumeRequest::default()
        };
        self.node.node_publish_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn unpublish(&self) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: "v1".to_owned(), target_path: TARGET.to_owned() };
        self.node.node_unpublish_volume(Request::new(request)).await.map(drop)
    }

    /// Grows the filesystem to the size of the LV.
    pub(crate) async fn expand(&self, bytes: i64) -> Result<(), Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: "v1".to_owned(),
            volume_path: TARGET.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..NodeExpandVolumeRequest::default()
        };
        self.node.node_expand_volume(Request::new(request)).await.map(drop)
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}
