//! The whole agent over real unix sockets: started, served, interrupted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use linux_mount::DeviceUse;
use node_io_limits::IoLimitSettings;
use node_orphans::OrphanSettings;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use topolvm_api::ApiFlavor;
use topolvm_kube::{CredentialSource, Credentials};
use topolvm_node::{Config, LvmdConfig, start};
use topolvm_proto::csi::identity_client::IdentityClient;
use topolvm_proto::csi::node_client::NodeClient;
use topolvm_proto::csi::volume_capability::{AccessType, BlockVolume};
use topolvm_proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetInfoRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest, ProbeRequest,
};
use topolvm_runtime::inventory_server::InventoryConfig;
use topolvm_runtime::metrics_server::MetricsConfig;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node};
use topolvm_testkit::lvm::FakeLvm;

use crate::cluster::{LV, now, without_conditions};
use crate::fake_machine::Machine;
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, TWO_CLASSES, VG};
use crate::node::capability;

const GIB: u64 = 1 << 30;

/// Settings in which the agents of tests differ.
struct Settings {
    inventory: Option<InventoryConfig>,
    io_limits: IoLimitSettings,
    clock: fn() -> Timestamp,
}

impl Default for Settings {
    fn default() -> Self {
        Self { inventory: None, io_limits: IoLimitSettings::default(), clock: now }
    }
}

/// The agent of node `n1`.
pub(crate) struct Agent {
    pub(crate) dir: TempDir,
    pub(crate) lvm: FakeLvm,
    pub(crate) machine: Machine,
    /// Address of the metrics.
    pub(crate) metrics: SocketAddr,
    /// Address of the probes.
    health: SocketAddr,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Agent {
    pub(crate) async fn start(api: &ApiServer) -> Self {
        Self::start_with(api, Settings::default()).await
    }

    /// Starts one with this clock.
    async fn start_with_clock(api: &ApiServer, clock: fn() -> Timestamp) -> Self {
        Self::start_with(api, Settings { clock, ..Settings::default() }).await
    }

    /// Starts one that serves lists.
    pub(crate) async fn start_with_lists(api: &ApiServer, lists: InventoryConfig) -> Self {
        Self::start_with(api, Settings { inventory: Some(lists), ..Settings::default() }).await
    }

    /// Starts one with these settings of I/O limits.
    pub(crate) async fn start_with_io_limits(api: &ApiServer, io_limits: IoLimitSettings) -> Self {
        Self::start_with(api, Settings { io_limits, ..Settings::default() }).await
    }

    async fn start_with(api: &ApiServer, settings: Settings) -> Self {
        let lvm = FakeLvm::new().with_group(VG, 10 * GIB);
        let machine = Machine::new(&lvm);
        Self::start_on(tempfile::tempdir().unwrap(), lvm, machine, api, settings).await
    }

    /// Ends it in order, and starts it again on the same machine.
    pub(crate) async fn restart(self, api: &ApiServer) -> Self {
        self.restart_with(api, IoLimitSettings::default()).await
    }

    /// Restarts it with these settings of I/O limits.
    pub(crate) async fn restart_with(self, api: &ApiServer, io_limits: IoLimitSettings) -> Self {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
        let settings = Settings { io_limits, ..Settings::default() };
        Self::start_on(self.dir, self.lvm, self.machine, api, settings).await
    }

    async fn start_on(dir: TempDir, lvm: FakeLvm, machine: Machine, api: &ApiServer, settings: Settings) -> Self {
        let Settings { inventory, io_limits, clock } = settings;
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let [metrics, health] = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let [metrics, health] = [metrics, health].map(|free| free.local_addr().unwrap());
        let config = Config {
            flavor: ApiFlavor::TopoLvm,
            node: "n1".to_owned(),
            csi_socket: dir.path().join("csi.sock"),
            lvmd: LvmdConfig::<FakeLvm>::Socket(dir.path().join("lvmd.sock")),
            metrics: MetricsConfig::plain(metrics.to_string().parse().unwrap()),
            health: health.to_string().parse().unwrap(),
            inventory,
            stage_volumes: false,
            embeds_registrar: false,
            kubelet_dir: dir.path().to_owned(),
            node_labels: topolvm_api::NodeSelection::default(),
            extended_resources: false,
            io_limits,
            orphans: OrphanSettings::default(),
        };
        let (client, credentials) = Credentials::observe(api.client(), CredentialSource::Kubeconfig);
        start(config, client, credentials, machine.clone(), clock, &tasks, &shutdown).await.unwrap();
        Self { dir, lvm, machine, metrics, health, tasks, shutdown }
    }

    pub(crate) async fn lvmd(&self) -> LvmdProcess {
        let lvmd = LvmdProcess::start(&self.lvm, ONE_CLASS).await;
        lvmd.listen(&self.dir.path().join("lvmd.sock")).await
    }

    /// Returns the answer to kubelet's question whether it is ready.
    async fn readyz(&self) -> String {
        let mut connection = loop {
            match TcpStream::connect(self.health).await {
                Ok(connection) => break connection,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        connection.write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    }

    pub(crate) async fn csi(&self) -> Channel {
        let socket = self.dir.path().join("csi.sock");
        let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
        assert!(!self.dir.path().join("csi.sock").exists());
    }
}

pub(crate) async fn until_ready(api: &ApiServer, name: &str) -> Value {
    let status = |object: Option<&Value>| without_conditions(object?).filter(|status| status.get("volumeID").is_some());
    api.until(LV, "", name, status).await
}

#[tokio::test]
async fn csi_socket_is_served_before_api_server_and_lvmd_answer() {
    let api = ApiServer::new();
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    api.disconnect();
    let agent = Agent::start(&api).await;
    let mut identity = IdentityClient::new(agent.csi().await);
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "topolvm.io");
    let capabilities = identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    assert_eq!(capabilities, topolvm_proto::plugin::capabilities(), "as on the controller's socket");
    let status = identity.probe(ProbeRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("lvmd"), "{status}");
    let answer = agent.readyz().await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("lvmd"), "{answer}");

    api.reconnect();
    let _lvmd = agent.lvmd().await;
    assert_eq!(until_ready(&api, "pvc-1").await, json!({"volumeID": "u1", "currentSize": "1Gi"}));
    let probe = identity.probe(ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let answer = agent.readyz().await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    agent.stop().await;
}

/// As with a token that was bound to a Node which was deleted.
#[tokio::test]
async fn agent_is_not_ready_while_its_credentials_are_rejected() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    until_readyz(&agent, "200 ").await;
    api.reject_credentials(true);
    api.close_watches();
    let answer = until_readyz(&agent, "503 ").await;
    assert!(answer.contains("401 Unauthorized"), "{answer}");
    let status = IdentityClient::new(agent.csi().await).probe(ProbeRequest {}).await.unwrap_err();
    assert!(status.code() == Code::FailedPrecondition && status.message().contains("401"), "{status}");
    api.reject_credentials(false);
    until_readyz(&agent, "200 ").await;
    agent.stop().await;
}

/// Asks until the status is this one, and returns the answer.
async fn until_readyz(agent: &Agent, status: &str) -> String {
    let asking = async {
        loop {
            let answer = agent.readyz().await;
            if answer.starts_with(&format!("HTTP/1.1 {status}")) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), asking).await.unwrap()
}

#[tokio::test]
async fn node_returns_its_name_and_topology_to_kubelet() {
    let agent = Agent::start(&ApiServer::new()).await;
    let mut client = NodeClient::new(agent.csi().await);
    let info = client.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, "n1");
    let topology = info.accessible_topology.unwrap().segments;
    assert_eq!(topology.into_iter().collect::<Vec<_>>(), [("topology.topolvm.io/node".to_owned(), "n1".to_owned())]);
    agent.stop().await;
}

#[tokio::test]
async fn volumes_requested_during_an_lvmd_restart_are_created_later() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let agent = Agent::start(&api).await;
    let lvmd = agent.lvmd().await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    lvmd.stop().await;
    for name in ["pvc-2", "pvc-3", "pvc-4"] {
        api.apply_json(logical_volume(name).uid(name).build());
    }
    // Each has its finalizer, so lvmd has been or is being asked for its volume
    for name in ["pvc-2", "pvc-3", "pvc-4"] {
        api.until(LV, "", name, |object| object?.pointer("/metadata/finalizers").map(drop)).await;
    }
    let _lvmd = agent.lvmd().await;
    for name in ["pvc-2", "pvc-3", "pvc-4"] {
        let status = until_ready(&api, name).await;
        assert_eq!(status, json!({"volumeID": name, "currentSize": "1Gi"}));
    }
    agent.stop().await;
}

/// TopoLVM works on one object after the other, so that one LVM command which hangs holds up the node.
#[tokio::test]
async fn an_lvm_that_hangs_in_one_volume_group_holds_up_no_other() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let agent = Agent::start(&api).await;
    agent.lvm.add_group("slow", 10 * GIB, 1);
    let lvmd = LvmdProcess::start(&agent.lvm, TWO_CLASSES).await;
    let _lvmd = lvmd.listen(&agent.dir.path().join("lvmd.sock")).await;
    let mut hanging = agent.lvm.pause("lvcreate");
    let waiting: Vec<_> = (0..10).map(|number| format!("pvc-slow{number}")).collect();
    for name in &waiting {
        api.apply_json(logical_volume(name).uid(name).class("hdd").build());
    }
    hanging.reached().await;
    api.apply_json(logical_volume("pvc-2").uid("u2").build());
    until_ready(&api, "pvc-2").await;
    for name in &waiting {
        assert_eq!(api.get_json(LV, "", name).unwrap().get("status"), None);
    }
    hanging.resume();
    for name in &waiting {
        until_ready(&api, name).await;
    }
    agent.stop().await;
}

/// A clock that is half a minute later each time.
fn passing() -> Timestamp {
    static SECONDS: AtomicI64 = AtomicI64::new(1_767_225_600);
    Timestamp::from_second(SECONDS.fetch_add(30, Ordering::Relaxed)).unwrap()
}

#[tokio::test]
async fn published_block_volume_is_removed_only_after_unpublish() {
    let api = ApiServer::new();
    let agent = Agent::start_with_clock(&api, passing).await;
    let _lvmd = agent.lvmd().await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    let mut csi = NodeClient::new(agent.csi().await);
    let target_path = agent.dir.path().join("device").display().to_string();
    let request = NodePublishVolumeRequest {
        volume_id: "u1".to_owned(),
        target_path: target_path.clone(),
        volume_capability: Some(capability(AccessType::Block(BlockVolume {}))),
        ..NodePublishVolumeRequest::default()
    };
    csi.node_publish_volume(request).await.unwrap();

    // As when the node was cut off, and pod and claim were deleted by force
    api.delete(LV, "", "pvc-1");
    tokio::select! {
        () = api.wait_for_requests("create", "events.events.k8s.io", 1) => {}
        () = api.until(LV, "", "pvc-1", |object| object.is_none().then_some(())) => panic!("the volume was removed"),
    }
    let event = api.list_json("events.events.k8s.io").remove(0);
    assert_eq!(event["reason"], "RemoveFailed");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("still in use: mounted at ") && note.contains(&target_path), "{note}");
    assert_eq!(agent.lvm.volumes(VG), ["u1"]);

    csi.node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id: "u1".to_owned(), target_path }).await.unwrap();
    api.until(LV, "", "pvc-1", |object| object.is_none().then_some(())).await;
    assert_eq!((agent.lvm.volumes(VG), agent.machine.mounts()), (Vec::new(), Vec::new()));
    agent.stop().await;
}

#[tokio::test]
async fn failed_removal_names_what_holds_the_device() {
    let api = ApiServer::new();
    let agent = Agent::start_with_clock(&api, passing).await;
    let _lvmd = agent.lvmd().await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    agent.lvm.edit_volume(VG, "u1", |volume| volume.open = true);
    agent.machine.hold(DeviceUse::Loop("/dev/loop7".to_owned()));

    api.delete(LV, "", "pvc-1");
    api.wait_for_requests("create", "events.events.k8s.io", 1).await;
    let event = api.list_json("events.events.k8s.io").remove(0);
    let note = event["note"].as_str().unwrap();
    assert!(
        note.contains("myvg/u1 in use; its device is backing file of /dev/loop7")
            && note.contains("losetup --detach /dev/loop7"),
        "{note}"
    );
    // Doctor and plugin read the condition
    let condition = |object: Option<&Value>| {
        let conditions = object?.pointer("/status/conditions")?.as_array()?;
        let removed = conditions.iter().find(|condition| condition["type"] == "Removed")?;
        Some(removed["message"].as_str()?.to_owned())
    };
    assert_eq!(api.until(LV, "", "pvc-1", condition).await, note);
    agent.lvm.edit_volume(VG, "u1", |volume| volume.open = false);
    api.until(LV, "", "pvc-1", |object| object.is_none().then_some(())).await;
    agent.stop().await;
}

#[tokio::test]
async fn no_watch_can_be_silently_dead_for_longer_than_a_minute() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    until_ready(&api, "pvc-1").await;
    let requests = api.requests().into_iter();
    let watches: Vec<_> = requests.filter(|(verb, _)| *verb == "watch").map(|(_, path)| path).collect();
    assert!(watches.iter().any(|path| path.contains("/logicalvolumes")), "{watches:?}");
    assert!(watches.iter().all(|path| path.contains("timeoutSeconds=60")), "{watches:?}");
    agent.stop().await;
}

#[tokio::test]
async fn broken_and_expired_watches_are_taken_up_again() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    api.expire();
    api.apply_json(logical_volume("pvc-2").uid("u2").build());
    until_ready(&api, "pvc-2").await;
    api.delete(LV, "", "pvc-1");
    api.until(LV, "", "pvc-1", |object| object.is_none().then_some(())).await;
    assert_eq!(agent.lvm.volumes(VG), ["u2"]);
    agent.stop().await;
}

#[tokio::test]
async fn objects_are_selected_by_the_server_where_it_can() {
    let api = ApiServer::new();
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    let volumes = |(_, path): &(&str, String)| path.contains("/logicalvolumes?");
    let all: Vec<_> = api.requests().into_iter().filter(volumes).collect();
    assert!(!all.is_empty());
    assert!(all.iter().all(|(_, path)| path.contains("spec.nodeName")), "{all:?}");
    agent.stop().await;
}

#[tokio::test]
async fn agent_without_field_selectors_reconciles_only_own_objects() {
    let api = ApiServer::new();
    api.set_selectable_fields(LV, &[]);
    api.apply_json(logical_volume("pvc-1").on("n2").uid("u1").build());
    api.apply_json(logical_volume("pvc-2").uid("u2").build());
    let agent = Agent::start(&api).await;
    let _lvmd = agent.lvmd().await;
    until_ready(&api, "pvc-2").await;
    assert_eq!(api.get_json(LV, "", "pvc-1").unwrap().get("status"), None);
    assert_eq!(agent.lvm.volumes(VG), ["u2"]);
    agent.stop().await;
}
