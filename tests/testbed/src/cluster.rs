//! A Kubernetes control plane in a separate network namespace. All its files are in one directory; several clusters can
//! run in parallel.

mod lifecycle;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

pub(crate) use self::lifecycle::remove_directory;
use self::lifecycle::{copy_logs, in_parallel, node_names, start, stop_processes};
use crate::assets;
use crate::control_plane::{AUDIT, ControlPlane};
use crate::image::Image;
use crate::kubeconfig::Credential;
use crate::netns::NetNs;
use crate::node::{Node, NodeSpec};
use crate::pki::Pki;
use crate::reaper;

/// Name of the API server among the processes of a cluster.
pub const API_SERVER_PROCESS: &str = crate::control_plane::API_SERVER_PROCESS;
/// Name of kube-scheduler among the processes of a cluster.
pub const SCHEDULER_PROCESS: &str = crate::control_plane::SCHEDULER_PROCESS;

/// Address of etcd in the namespace of a cluster.
pub const ETCD: &str = crate::control_plane::ETCD;

/// Options of a cluster.
#[derive(Debug, Clone, Default)]
pub struct ClusterSpec {
    /// Further lines of the KubeSchedulerConfiguration, for example an `extenders:` list. `clientConnection` and
    /// `leaderElection` are already set.
    pub scheduler_config: Option<String>,
    /// Images that every node has in addition to the standard ones.
    pub images: Vec<Image>,
    /// Audit policy of the API server, in YAML. With one, [`Cluster::audit_log`] has the events that it selects.
    pub audit_policy: Option<String>,
}

/// A handle of a running cluster: dropping it changes nothing, [`Cluster::down`] ends the cluster, and so does the end
/// of the program that started it, unless [`Cluster::keep`] was called.
#[derive(Debug, Clone)]
pub struct Cluster {
    control_plane: Arc<ControlPlane>,
}

impl Cluster {
    /// Starts a cluster in `directory`, which must be empty or missing, and returns when pods can be created. A start
    /// that fails leaves nothing behind.
    pub fn up(directory: &Path, spec: &ClusterSpec) -> Result<Self> {
        let tools = assets::kubernetes_tools()?;
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let directory = directory.canonicalize().with_context(|| format!("resolve {}", directory.display()))?;
        if fs::read_dir(&directory)?.next().is_some() {
            bail!("{} is not empty: a cluster needs a separate directory", directory.display());
        }
        start(&directory, &tools, spec).inspect_err(|_| drop(remove_directory(&directory)))
    }

    /// Opens the cluster that was started in `directory` by an earlier run.
    pub fn open(directory: &Path) -> Result<Self> {
        Ok(Self { control_plane: Arc::new(ControlPlane::open(&check_directory(directory)?)?) })
    }

    /// Ends the cluster and removes its directory. The logs are first copied to `keep_logs`.
    pub fn down(&self, keep_logs: Option<&Path>) -> Result<()> {
        Self::down_in(self.directory(), keep_logs)
    }

    /// Ends the cluster in `directory`, complete or not, as [`Self::down`] does.
    pub fn down_in(directory: &Path, keep_logs: Option<&Path>) -> Result<()> {
        let directory = check_directory(directory)?;
        if let Some(to) = keep_logs {
            stop_processes(&directory)?;
            copy_logs(&directory, to)?;
        }
        remove_directory(&directory)
    }

    /// Keeps the cluster after the end of this program. Without, it ends with the program, even if that is killed.
    pub fn keep(&self) -> Result<()> {
        self.stop(reaper::NAME, Duration::ZERO)
    }

    /// Starts a node and returns when it is Ready. Threads may start several at the same time.
    pub fn add_node(&self, spec: &NodeSpec) -> Result<Node> {
        Node::start(&self.control_plane, spec)
    }

    /// Starts several nodes at the same time and returns when all are Ready, in the same order.
    pub fn add_nodes(&self, specs: &[NodeSpec]) -> Result<Vec<Node>> {
        in_parallel(specs, |spec| self.add_node(spec))
    }

    /// Returns a node that was added earlier.
    pub fn node(&self, name: &str) -> Result<Node> {
        Node::open(&self.control_plane, name)
    }

    /// Returns the names of the nodes that were added, sorted.
    pub fn node_names(&self) -> Result<Vec<String>> {
        node_names(self.directory())
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.control_plane.directory
    }

    /// Returns the network namespace with the API server, the ClusterIPs and the routes to all nodes and pods.
    pub fn netns(&self) -> &NetNs {
        &self.control_plane.netns
    }

    /// Returns the certificate authority, which signs certificates for webhooks, users and servers of a test.
    pub fn pki(&self) -> &Pki {
        &self.control_plane.pki
    }

    /// Starts a program that belongs to the cluster: `run/NAME.pid` has its process id, `log/NAME.log` its output, and
    /// [`Cluster::down`] ends it. A command of [`Cluster::command`] runs inside the namespace.
    pub fn spawn(&self, name: &str, command: &Command) -> Result<()> {
        self.control_plane.processes.start(name, command)
    }

    /// Stops a program that [`Cluster::spawn`] or the cluster started: TERM first, KILL after `grace`. One that does
    /// not run is no error.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        self.control_plane.processes.stop(name, grace)
    }

    /// Starts the API server again after it was stopped, and waits until it answers.
    pub fn start_api_server(&self) -> Result<()> {
        self.control_plane.start_api_server()?;
        self.control_plane.wait_for_api()
    }

    /// Stops the API server and etcd, lets `change` read or change etcd's data directory, and restarts both.
    pub fn restart_storage(&self, change: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.stop("apiserver", Duration::ZERO)?;
        // So that all data is in its files
        self.stop("etcd", Duration::from_secs(20))?;
        let changed = change(&self.directory().join("etcd"));
        self.control_plane.start_storage()?;
        self.control_plane.wait_for_api()?;
        changed
    }

    /// Restarts kube-controller-manager and kube-scheduler, and waits until pods can be created.
    pub fn restart_controllers(&self) -> Result<()> {
        for name in ["controller-manager", "scheduler"] {
            self.stop(name, Duration::ZERO)?;
        }
        self.control_plane.start_controllers()?;
        self.control_plane.wait_for_controllers()
    }

    /// Returns the command that started kube-scheduler, for a caller that restarts it when it exits, as kubelet does
    /// with a static pod.
    pub fn scheduler_command(&self) -> Command {
        self.control_plane.scheduler()
    }

    /// Calls `probe` again and again until it succeeds; fails when the program has ended or takes more than three
    /// minutes, with the end of its log.
    pub fn ready<T>(&self, name: &str, probe: impl FnMut() -> Result<T>) -> Result<T> {
        self.control_plane.processes.wait_until_ready(name, probe)
    }

    /// Does the same within another time.
    pub fn ready_within<T>(&self, name: &str, timeout: Duration, probe: impl FnMut() -> Result<T>) -> Result<T> {
        self.control_plane.processes.wait_until_ready_within(name, timeout, probe)
    }

    /// Returns the path of the log of a program of the cluster.
    pub fn log(&self, name: &str) -> PathBuf {
        self.control_plane.processes.log(name)
    }

    /// Returns the path of the audit log of the API server: an event in JSON on each line.
    pub fn audit_log(&self) -> PathBuf {
        self.log(AUDIT)
    }

    /// Returns the path of an administrator's kubeconfig that works in this machine's own namespace, through a
    /// forwarded port of 127.0.0.1.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory().join("host.kubeconfig")
    }

    /// Returns the path of an administrator's kubeconfig that works inside the cluster's namespace and in the nodes.
    pub fn inner_kubeconfig(&self) -> PathBuf {
        self.control_plane.admin_kubeconfig()
    }

    /// Writes a kubeconfig that works inside the cluster's namespace and in the nodes.
    pub fn write_kubeconfig(&self, path: &Path, credential: &Credential<'_>) -> Result<()> {
        self.control_plane.write_kubeconfig(path, credential)
    }

    /// Creates a client of the API server for this process, as administrator.
    pub async fn client(&self) -> Result<kube::Client> {
        let config = kube::config::Kubeconfig::read_from(self.kubeconfig()).context("read the kubeconfig")?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await.context("use the kubeconfig")?;
        kube::Client::try_from(config).context("make a client")
    }

    /// Sends a GET to the API server as administrator; `path` begins with `/api`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.control_plane.get(path)
    }

    /// Returns a command that runs inside the cluster's namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.netns().command(program);
        // kubectl and helm cache the kinds of a cluster by its address, which all test clusters share
        command.env("KUBECACHEDIR", self.directory().join("kubectl-cache"));
        command
    }

    /// Returns the path of a program of Kubernetes: `kubectl`, `kubelet`, `csi-provisioner`, ...
    pub fn tool(&self, name: &str) -> PathBuf {
        self.directory().join("bin").join(name)
    }

    /// Runs kubectl as administrator, and returns its output and status.
    pub fn kubectl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
        self.kubectl_command().args(arguments).stdin(Stdio::null()).output().context("run kubectl")
    }

    /// Returns kubectl as administrator, to be run by the caller, who sets its streams.
    pub fn kubectl_command(&self) -> Command {
        let mut command = self.command(self.tool("kubectl"));
        command.arg("--kubeconfig").arg(self.inner_kubeconfig());
        command
    }

    /// Runs kubectl as administrator, and returns its standard output, or an error with its standard error.
    pub fn kubectl_ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(arguments).stdin(Stdio::null());
        let output = command.output().context("run kubectl")?;
        success(&command, output)
    }

    /// Applies manifests: server-side, so that an object of any size is accepted and nothing is kept in annotations.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run kubectl")?;
        // Dropped before the wait, which is the end of the input.
        std::io::Write::write_all(&mut child.stdin.take().context("no standard input")?, yaml.as_bytes())
            .context("write to kubectl")?;
        success(&command, child.wait_with_output().context("wait for kubectl")?)
    }

    /// Makes the images of an OCI archive available to the pods of all nodes (`imagePullPolicy: Never` or
    /// `IfNotPresent`).
    pub fn load_images(&self, archive: &Path) -> Result<()> {
        let nodes: Vec<Node> = self.node_names()?.iter().map(|name| self.node(name)).collect::<Result<_>>()?;
        in_parallel(&nodes, |node| node.load_images(archive)).map(drop)
    }
}

/// Checks that a directory is that of a cluster, so that a wrong argument removes no other files.
fn check_directory(directory: &Path) -> Result<PathBuf> {
    let directory = directory.canonicalize().with_context(|| format!("no cluster in {}", directory.display()))?;
    if !["pki", "run", "nodes"].iter().all(|part| directory.join(part).is_dir()) {
        bail!("{} is not the directory of a cluster", directory.display());
    }
    Ok(directory)
}

fn success(command: &Command, output: Output) -> Result<String> {
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("the output of kubectl is not text")
}
