//! The whole agent with lvmd in its process: the same lvmd, without a socket.

use std::fs;

use lvmd::Settings;
use node_io_limits::IoLimitSettings;
use node_orphans::OrphanSettings;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Endpoint;
use topolvm_api::ApiFlavor;
use topolvm_kube::{CredentialSource, Credentials};
use topolvm_node::{Config, LvmdConfig, start};
use topolvm_proto::csi::ProbeRequest;
use topolvm_proto::csi::identity_client::IdentityClient;
use topolvm_runtime::listen::Listen;
use topolvm_runtime::metrics_server::MetricsConfig;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node};
use topolvm_testkit::lvm::FakeLvm;

use crate::cluster::{LV, now, without_conditions};
use crate::fake_machine::Machine;
use crate::lvmd_process::{ONE_CLASS, TWO_CLASSES, VG};

const GIB: u64 = 1 << 30;

/// The agent of node `n1`, whose configuration of lvmd is a file.
struct Agent {
    dir: TempDir,
    lvm: FakeLvm,
    tasks: Tasks,
    shutdown: CancellationToken,
    metrics: String,
}

impl Agent {
    async fn start(api: &ApiServer, lvm: FakeLvm) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let metrics = free.local_addr().unwrap().to_string();
        drop(free);
        let file = dir.path().join("lvmd.yaml");
        fs::write(&file, ONE_CLASS).unwrap();
        let settings = Settings { config: lvmd_config::load(&file).unwrap(), file, runner: lvm.clone() };
        let config = Config {
            flavor: ApiFlavor::TopoLvm,
            node: "n1".to_owned(),
            csi_socket: dir.path().join("csi.sock"),
            lvmd: LvmdConfig::Embedded(Box::new(settings)),
            metrics: MetricsConfig::plain(metrics.parse().unwrap()),
            health: Listen::Off,
            inventory: None,
            stage_volumes: false,
            embeds_registrar: false,
            kubelet_dir: dir.path().to_owned(),
            node_labels: topolvm_api::NodeSelection::default(),
            extended_resources: false,
            io_limits: IoLimitSettings::default(),
            orphans: OrphanSettings::default(),
        };
        let (client, credentials) = Credentials::observe(api.client(), CredentialSource::Kubeconfig);
        start(config, client, credentials, Machine::new(&lvm), now, &tasks, &shutdown).await.unwrap();
        Self { dir, lvm, tasks, shutdown, metrics }
    }

    fn configure(&self, text: &str) {
        fs::write(self.dir.path().join("lvmd.yaml"), text).unwrap();
    }

    async fn probe(&self) -> Result<Option<bool>, tonic::Status> {
        let socket = format!("unix:{}", self.dir.path().join("csi.sock").display());
        let channel = Endpoint::try_from(socket).unwrap().connect().await.unwrap();
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await?;
        Ok(answer.into_inner().ready)
    }

    async fn metrics(&self) -> String {
        let mut connection = TcpStream::connect(&self.metrics).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut page = String::new();
        connection.read_to_string(&mut page).await.unwrap();
        page
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

async fn until_ready(api: &ApiServer, name: &str) -> Value {
    let status = |object: Option<&Value>| without_conditions(object?).filter(|status| status.get("volumeID").is_some());
    api.until(LV, "", name, status).await
}

/// Waits until the Node says that so much is free in a class.
async fn until_free(api: &ApiServer, class: &str, bytes: u64) {
    let (class, bytes) = (format!("capacity.topolvm.io/{class}"), json!(bytes.to_string()));
    let said = |node: Option<&Value>| node?.pointer("/metadata/annotations")?.get(&class).cloned();
    api.until("nodes", "", "n1", |node| (said(node)? == bytes).then_some(())).await;
}

#[tokio::test]
async fn embedded_lvmd_creates_volumes_and_publishes_capacity() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let agent = Agent::start(&api, FakeLvm::new().with_group(VG, 10 * GIB)).await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    assert_eq!(until_ready(&api, "pvc-1").await, json!({"volumeID": "u1", "currentSize": "1Gi"}));
    until_free(&api, "ssd", 9 * GIB).await;
    assert_eq!(agent.probe().await.unwrap(), Some(true));
    assert_eq!(agent.lvm.volumes(VG), ["u1"]);

    // The labels of the Node are sent once the stream of the storage exists
    let page = loop {
        let page = agent.metrics().await;
        if page.contains("topolvm_grpc_handled_total{method=\"SetNodeLabels\",code=\"Ok\"} 1\n") {
            break page;
        }
        tokio::task::yield_now().await;
    };
    for line in [
        "topolvm_lvmd_connected{node=\"n1\"} 1",
        "topolvm_lvmd_device_class_volumes{device_class=\"ssd\"} 1",
        "topolvm_lvmd_config_last_reload_successful 1",
        "topolvm_grpc_handled_total{method=\"CreateLV\",code=\"Ok\"} 1",
        "topolvm_grpc_seconds_count{method=\"CreateLV\"} 1",
        "topolvm_grpc_seconds_count{method=\"Probe\"} 1",
        "topolvm_lvm_commands_total{command=\"lvcreate\",outcome=\"ok\"} 1",
    ] {
        assert!(page.contains(line), "no {line} in {page}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn reconcile_metrics_count_a_failure_and_the_next_success() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    api.fail_next("patch", LV, 1, 500);
    let agent = Agent::start(&api, FakeLvm::new().with_group(VG, 10 * GIB)).await;
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    // The status is there a moment before the reconcile that wrote it has ended
    let succeeded = "topolvm_reconcile_seconds_count{controller=\"logicalvolume\",result=\"ok\"} ";
    let page = loop {
        let page = agent.metrics().await;
        if page.contains(succeeded) {
            break page;
        }
        tokio::task::yield_now().await;
    };
    let failed = "topolvm_reconcile_seconds_count{controller=\"logicalvolume\",result=\"error\"} 1\n";
    assert!(page.contains(failed), "{page}");
    agent.stop().await;
}

#[tokio::test]
async fn missing_volume_group_fails_the_probe_until_reconfigured() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    let agent = Agent::start(&api, FakeLvm::new().with_group("renamed", 10 * GIB)).await;
    // The object has its finalizer, so lvmd is being asked
    api.until(LV, "", "pvc-1", |object| object?.pointer("/metadata/finalizers").map(drop)).await;
    let status = agent.probe().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("not started: "), "{status}");

    agent.configure("device-classes: [{name: ssd, volume-group: renamed, default: true, spare-gb: 0}]");
    assert_eq!(until_ready(&api, "pvc-1").await, json!({"volumeID": "u1", "currentSize": "1Gi"}));
    assert_eq!(agent.probe().await.unwrap(), Some(true));
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_configuration_is_taken_over_and_a_bad_one_is_not() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let agent = Agent::start(&api, FakeLvm::new().with_group(VG, 10 * GIB).with_group("slow", 5 * GIB)).await;
    until_free(&api, "ssd", 10 * GIB).await;
    agent.configure(TWO_CLASSES);
    until_free(&api, "hdd", 5 * GIB).await;
    agent.configure("device-classes: []");
    while !agent.metrics().await.contains("topolvm_lvmd_config_last_reload_successful 0") {
        tokio::task::yield_now().await;
    }
    api.apply_json(logical_volume("pvc-1").class("hdd").uid("u1").build());
    until_ready(&api, "pvc-1").await;
    assert_eq!(agent.lvm.volumes("slow"), ["u1"]);
    agent.stop().await;
}

#[tokio::test]
async fn what_lvm_has_begun_is_finished_before_the_agent_ends() {
    let api = ApiServer::new();
    api.apply_json(node("n1").build());
    let agent = Agent::start(&api, FakeLvm::new().with_group(VG, 10 * GIB)).await;
    let mut creating = agent.lvm.pause("lvcreate");
    api.apply_json(logical_volume("pvc-1").uid("u1").build());
    creating.reached().await;
    let lvm = agent.lvm.clone();
    agent.shutdown.cancel();
    let release = async {
        tokio::task::yield_now().await;
        creating.resume();
    };
    tokio::join!(agent.stop(), release);
    let tags = lvm.volume(VG, "u1").unwrap().tags;
    assert!(!tags.iter().any(|tag| tag.starts_with("topolvm.io/making")), "{tags:?}");
}
