//! Nodes without a machine: the objects that kubelet would write, the real topolvm-node as a process of this machine,
//! and the real lvmd in this process over a fake LVM. Volumes are created in milliseconds, and no pod ever runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::PostParams;
use kube::{Api, Client};
use lvm::Lvm;
use prometheus_client::registry::Registry;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::kubeconfig::Credential;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{NODE, TopolvmSpec};
use tokio::runtime::{self, Runtime};
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_runtime::{CancellationToken, Tasks, grpc, unix};
use topolvm_testkit::lvm::FakeLvm;

/// Time for an agent to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// The nodes of this kind in a cluster.
pub struct FakeNodes<'a> {
    cluster: &'a Cluster,
    programs: PathBuf,
    runtime: Runtime,
    client: Client,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl fmt::Debug for FakeNodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeNodes").field("cluster", self.cluster).finish_non_exhaustive()
    }
}

impl<'a> FakeNodes<'a> {
    /// Prepares a cluster for them. Their agents are the programs of the specification.
    pub fn new(cluster: &'a Cluster, spec: &TopolvmSpec) -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(cluster.client())?;
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        Ok(Self { cluster, programs: spec.programs.clone(), runtime, client, tasks, shutdown })
    }

    /// Adds a node with the volume groups of a fake LVM and the device classes of an lvmd.yaml.
    pub fn add(&self, name: &str, lvm: &FakeLvm, lvmd_config: &str) -> Result<()> {
        self.add_without_agent(name, lvm, lvmd_config)?;
        self.start_agent(name)
    }

    /// Adds a node whose agent the caller starts.
    pub fn add_without_agent(&self, name: &str, lvm: &FakeLvm, lvmd_config: &str) -> Result<()> {
        self.runtime.block_on(async {
            self.create_objects(name).await?;
            self.serve_lvmd(lvm, lvmd_config, &self.lvmd_socket(name)).await
        })
    }

    /// Removes a node that has no volumes any more, or whose volumes are to be lost.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.cluster.kubectl_ok(["delete", &format!("node/{name}"), &format!("csinode/{name}"), "--timeout=180s"])?;
        self.cluster.stop(&process_name(name), GRACE)
    }

    /// Ends the lvmd of each node. The agents end with the cluster, or when their node is removed.
    pub fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        self.runtime.block_on(self.tasks.wait())
    }

    /// Runs a future that uses [`client`](Self::client).
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Returns an administrator's client of the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Creates the Node as kubelet registers it, and the CSINode with the driver. Its Lease is not renewed, so after a
    /// minute only pods that tolerate all taints run there.
    async fn create_objects(&self, name: &str) -> Result<()> {
        let topology_key = TopoLvm.topology_key();
        let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "500"});
        let node = serde_json::from_value::<Node>(json!({
            "metadata": {"name": name, "labels": {
                topology_key: name, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            }},
            "status": {
                "capacity": resources, "allocatable": resources,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }))?;
        let csi_node = serde_json::from_value::<CSINode>(json!({
            "metadata": {"name": name},
            "spec": {"drivers": [
                {"name": TopoLvm.driver_name(), "nodeID": name, "topologyKeys": [topology_key]},
            ]},
        }))?;
        Api::all(self.client()).create(&PostParams::default(), &node).await.context("create the Node")?;
        Api::all(self.client()).create(&PostParams::default(), &csi_node).await.context("create the CSINode")?;
        Ok(())
    }

    /// Serves lvmd with the device classes of a configuration in this process.
    async fn serve_lvmd(&self, lvm: &FakeLvm, config: &str, socket: &Path) -> Result<()> {
        let classes = lvmd_config::Config::parse("lvmd.yaml", config)?.classes;
        let (id, shutdown) = (lvmd_config::tags::InstanceId::new(socket, None), self.shutdown.clone());
        let engine =
            lvmd_engine::Engine::start(Lvm::new(lvm.clone()), classes, id, &self.tasks, shutdown.clone()).await?;
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
        let routes = lvmd::routes(&engine).add_service(health);
        let listener = unix::listen(socket).await?;
        let metrics = grpc::RpcMetrics::register(&mut Registry::default());
        self.tasks.spawn("lvmd", async move { grpc::serve(listener, routes, &metrics, shutdown).await });
        Ok(())
    }

    /// Returns the command of the agent of a node, without a kubeconfig. It serves on `csi_socket`.
    pub fn agent_command(&self, name: &str, csi_socket: &Path) -> Command {
        let mut agent = self.cluster.command(self.programs.join(NODE));
        agent.args(["--nodename", name, "--embed=none", "--metrics-bind-address="]);
        agent.arg("--lvmd-socket").arg(self.lvmd_socket(name)).arg("--csi-socket").arg(csi_socket);
        agent
    }

    /// Stops the agent of a node.
    pub fn stop_agent(&self, name: &str) -> Result<()> {
        self.cluster.stop(&process_name(name), GRACE)
    }

    /// Starts the agent of a node with the rights of its ServiceAccount.
    pub fn start_agent(&self, name: &str) -> Result<()> {
        let directory = self.cluster.directory();
        let kubeconfig = directory.join(format!("{name}.kubeconfig"));
        let token = self.runtime.block_on(self.create_token(name))?;
        self.cluster.write_kubeconfig(&kubeconfig, &Credential::Token(&token))?;
        let mut agent = self.agent_command(name, &directory.join(format!("{name}-csi.sock")));
        agent.env("KUBECONFIG", &kubeconfig);
        self.cluster.spawn(&process_name(name), &agent)
    }

    /// Creates a token of the agents' ServiceAccount that is bound to a node, as that of a pod is.
    async fn create_token(&self, node: &str) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), NAMESPACE);
        let request = serde_json::from_value::<TokenRequest>(json!({"spec": {
            "audiences": [], "expirationSeconds": 86400,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node},
        }}))?;
        let answer = accounts.create_token_request(NODE, &PostParams::default(), &request).await;
        Ok(answer.context("create a token of the agent")?.status.context("no token in the answer")?.token)
    }

    fn lvmd_socket(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(format!("{name}-lvmd.sock"))
    }
}

fn process_name(node: &str) -> String {
    format!("{NODE}-{node}")
}
