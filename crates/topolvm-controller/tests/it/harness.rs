//! A controller over a fake API server, and requests to send to it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tonic::service::Routes;
use tonic::{Request, Status};
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_controller::{Driver, DriverSettings, MinimumAllocation};
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_proto::csi::group_controller_client::GroupControllerClient;
use topolvm_proto::csi::identity_client::IdentityClient;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use topolvm_proto::csi::volume_content_source::{self, SnapshotSource, VolumeSource};
use topolvm_proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, CreateSnapshotRequest,
    CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, Snapshot, Topology,
    TopologyRequirement, Volume, VolumeCapability, VolumeContentSource,
};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{ClaimBuilder, claim, node, storage_class};

use crate::agent::Agent;

pub(crate) const LVS: &str = "logicalvolumes";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const NODE_KEY: &str = "topology.topolvm.io/node";

/// One controller. Time is tokio's paused time.
pub(crate) struct Harness {
    pub(crate) api: ApiServer,
    pub(crate) csi: ControllerClient<Routes>,
    pub(crate) groups: GroupControllerClient<Routes>,
    pub(crate) identity: IdentityClient<Routes>,
    pub(crate) driver: Driver,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: Tasks,
}

/// Settings of a controller with snapshots and without a strategy.
pub(crate) fn settings() -> DriverSettings {
    DriverSettings {
        minimums: MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB },
        node_labels: NodeSelection::default(),
        node_strategy: None,
        snapshots: true,
    }
}

impl Harness {
    /// A controller that has listed everything, and nodes n1 and n2 with 10 and 20 GiB of the default class.
    pub(crate) async fn new() -> Self {
        Self::configured(settings()).await
    }

    /// The same with these settings.
    pub(crate) async fn configured(settings: DriverSettings) -> Self {
        let api = ApiServer::new();
        api.apply_json(node("n1").capacity("", 10).build());
        api.apply_json(node("n2").capacity("", 20).capacity("ssd", 5).build());
        let harness = Self::with_settings(&api, api.client(), ApiFlavor::TopoLvm, settings);
        harness.synced().await;
        harness
    }

    /// The same with an agent that has plenty of room.
    pub(crate) async fn with_agent() -> Self {
        let harness = Self::new().await;
        harness.start(&Agent::with_free(100 * GIB));
        harness
    }

    /// A controller on this server. It may not be ready yet.
    pub(crate) fn on(api: &ApiServer, flavor: ApiFlavor) -> Self {
        Self::over(api, api.client(), flavor)
    }

    /// A controller that reaches this server through this client.
    pub(crate) fn over(api: &ApiServer, client: Client, flavor: ApiFlavor) -> Self {
        Self::with_settings(api, client, flavor, settings())
    }

    fn with_settings(api: &ApiServer, client: Client, flavor: ApiFlavor, settings: DriverSettings) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let driver = Driver::start(client, flavor, settings, next_second, &tasks, &shutdown);
        Self {
            api: api.clone(),
            csi: ControllerClient::new(driver.routes().prepare()),
            groups: GroupControllerClient::new(driver.routes().prepare()),
            identity: IdentityClient::new(driver.routes().prepare()),
            driver,
            shutdown,
            tasks,
        }
    }

    /// A claim for the volume `pvc-UID`, of a class that binds with a pod, or of one that binds immediately.
    pub(crate) fn claim(&self, uid: &str, selected_node: Option<&str>, immediate: bool) {
        let class = storage_class("class");
        self.api.apply_json(if immediate { class.immediate() } else { class }.build());
        let claim = claim(&format!("data-{uid}")).class("class");
        let claim = selected_node.into_iter().fold(claim, ClaimBuilder::selected_node);
        let mut claim = claim.build();
        claim.metadata.uid = Some(uid.to_owned());
        self.api.apply_json(claim);
    }

    /// Waits until the controller is ready.
    pub(crate) async fn synced(&self) {
        while self.driver.ready().is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the watch has reported the volume with this id: finding it then takes no LIST.
    pub(crate) async fn synced_with(&self, id: &str) {
        loop {
            let lists = self.api.count("list", LVS);
            let known = self.expand(id, 1).await.is_ok();
            if known && self.api.count("list", LVS) == lists {
                return;
            }
        }
    }

    /// Free bytes of a device class in the cluster or on one node.
    pub(crate) async fn free(&self, class: &str, topology: Option<Topology>) -> u64 {
        let request = GetCapacityRequest {
            parameters: [("topolvm.io/device-class".to_owned(), class.to_owned())].into(),
            accessible_topology: topology,
            ..GetCapacityRequest::default()
        };
        let answer = self.csi.clone().get_capacity(request).await.unwrap().into_inner();
        u64::try_from(answer.available_capacity).unwrap()
    }

    /// Waits until the watch has reported so many free bytes in the cluster.
    pub(crate) async fn until_free(&self, class: &str, bytes: u64) {
        while self.free(class, None).await != bytes {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn start(&self, agent: &Agent) {
        drop(self.tasks.finish(agent.clone().run(self.api.clone())));
    }

    /// Runs something beside the test.
    pub(crate) fn beside<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.tasks.finish(work)
    }

    pub(crate) async fn create(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        create(self.csi.clone(), request).await
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() };
        self.csi.clone().delete_volume(in_ten_seconds(request)).await.map(drop)
    }

    pub(crate) async fn expand(&self, id: &str, bytes: u64) -> Result<ControllerExpandVolumeResponse, Status> {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(range(bytes, 0)),
            ..ControllerExpandVolumeRequest::default()
        };
        Ok(self.csi.clone().controller_expand_volume(in_ten_seconds(request)).await?.into_inner())
    }

    /// A volume that the node has made: its id.
    pub(crate) async fn made(&self, name: &str) -> String {
        self.create(on_nodes(volume(name), &["n1"])).await.unwrap().volume_id
    }

    pub(crate) async fn snapshot(&self, name: &str, source: &str) -> Result<Snapshot, Status> {
        let request = CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: source.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        Ok(self.csi.clone().create_snapshot(in_ten_seconds(request)).await?.into_inner().snapshot.unwrap())
    }

    pub(crate) async fn delete_snapshot(&self, id: &str) -> Result<(), Status> {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() };
        self.csi.clone().delete_snapshot(in_ten_seconds(request)).await.map(drop)
    }

    /// A `LogicalVolume`, or null.
    pub(crate) fn object(&self, name: &str) -> Value {
        self.api.get_json(LVS, "", name).unwrap_or_default()
    }
}

/// A clock that is one second further every time it is read.
fn next_second() -> jiff::Timestamp {
    static SECONDS: AtomicI64 = AtomicI64::new(0);
    jiff::Timestamp::from_second(SECONDS.fetch_add(1, Ordering::Relaxed)).unwrap()
}

pub(crate) async fn create(mut csi: ControllerClient<Routes>, request: CreateVolumeRequest) -> Result<Volume, Status> {
    let response = csi.create_volume(in_ten_seconds(request)).await?;
    Ok(response.into_inner().volume.unwrap())
}

/// As external-provisioner calls by default.
pub(crate) fn in_ten_seconds<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(Duration::from_secs(10));
    request
}

/// A request for a volume of 1 GiB with ext4, on any node.
pub(crate) fn volume(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(range(GIB, 0)),
        volume_capabilities: vec![mount("ext4")],
        ..CreateVolumeRequest::default()
    }
}

/// Mounted with this filesystem.
pub(crate) fn with_filesystem(mut request: CreateVolumeRequest, filesystem: &str) -> CreateVolumeRequest {
    request.volume_capabilities = vec![mount(filesystem)];
    request
}

/// With a parameter of the StorageClass.
pub(crate) fn with_parameter(mut request: CreateVolumeRequest, key: &str, value: &str) -> CreateVolumeRequest {
    request.parameters.insert(key.to_owned(), value.to_owned());
    request
}

/// On the first of these nodes, as external-provisioner asks with all of them.
pub(crate) fn on_nodes(mut request: CreateVolumeRequest, nodes: &[&str]) -> CreateVolumeRequest {
    let topologies: Vec<_> = nodes.iter().map(|node| topology(node)).collect();
    request.accessibility_requirements =
        Some(TopologyRequirement { requisite: topologies.clone(), preferred: topologies });
    request
}

/// As a copy of the snapshot with this id.
pub(crate) fn restored(mut request: CreateVolumeRequest, snapshot_id: &str) -> CreateVolumeRequest {
    request.volume_content_source = Some(VolumeContentSource {
        r#type: Some(volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id.to_owned() })),
    });
    request
}

/// As a copy of the volume with this id.
pub(crate) fn cloned(mut request: CreateVolumeRequest, volume_id: &str) -> CreateVolumeRequest {
    request.volume_content_source = Some(VolumeContentSource {
        r#type: Some(volume_content_source::Type::Volume(VolumeSource { volume_id: volume_id.to_owned() })),
    });
    request
}

pub(crate) fn sized(mut request: CreateVolumeRequest, required: u64, limit: u64) -> CreateVolumeRequest {
    request.capacity_range = Some(range(required, limit));
    request
}

pub(crate) fn range(required: u64, limit: u64) -> CapacityRange {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap();
    CapacityRange { required_bytes: signed(required), limit_bytes: signed(limit) }
}

pub(crate) fn topology(node: &str) -> Topology {
    Topology { segments: [(NODE_KEY.to_owned(), node.to_owned())].into() }
}

pub(crate) fn mount(filesystem: &str) -> VolumeCapability {
    let mount = MountVolume { fs_type: filesystem.to_owned(), ..MountVolume::default() };
    capability(AccessType::Mount(mount))
}

pub(crate) fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}))
}

fn capability(access_type: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// Code and message of an answer that has to be an error.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Result<T, Status>) -> (tonic::Code, String) {
    let status = answer.unwrap_err();
    (status.code(), status.message().to_owned())
}
