//! A Kubernetes node in a User-Mode Linux guest: containerd, kubelet and real LVM, joined to a cluster.

mod boot;
mod prepare;
mod spec;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::boot::{boot_id, pid_file, power_off};
use self::prepare::start_script;
pub use self::spec::NodeSpec;
use crate::cluster::Cluster;
use crate::exec::{self, Output, Request, Target};
use crate::netns::NetNs;
use crate::network::NodeNetwork;
use crate::process::stop_file;

/// PID 1 of a node.
pub(crate) const INIT: &str = include_str!("../init/node-init");
/// Its name in the directory of a cluster.
pub(crate) const INIT_FILE: &str = "node-init";

/// The directory of a node with a script for each program that its boot starts.
const KEPT: &str = "kept";
const AGENT_PORT: u16 = 7070;
/// Ten times what it takes on two busy CPUs.
const READY_LIMIT: Duration = Duration::from_secs(90);
const COMMAND_LIMIT: Duration = Duration::from_mins(2);

/// A node. The value is a name for it: dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct Node {
    cluster: Cluster,
    directory: PathBuf,
    network: NodeNetwork,
    spec: NodeSpec,
}

impl Node {
    pub(crate) fn start(cluster: &Cluster, spec: &NodeSpec) -> Result<Self> {
        let network = NodeNetwork::new(spec.address)?;
        let directory = cluster.directory().join("nodes").join(&spec.name);
        if fs::exists(&directory)? {
            bail!("the cluster has a node {} already", spec.name);
        }
        fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
        let node = Self { cluster: cluster.clone(), directory, network, spec: spec.clone() };
        node.prepare()
            .and_then(|()| node.boot(Instant::now() + READY_LIMIT, None))
            .inspect_err(|_| drop(node.down()))
            .with_context(|| format!("start {}", spec.name))?;
        Ok(node)
    }

    pub(crate) fn open(cluster: &Cluster, name: &str) -> Result<Self> {
        let directory = cluster.directory().join("nodes").join(name);
        let spec = NodeSpec::read(&directory).with_context(|| format!("the cluster has no node {name}"))?;
        Ok(Self { cluster: cluster.clone(), directory, network: NodeNetwork::new(spec.address)?, spec })
    }

    /// What it was made of.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its files on this machine: disks and logs. The guest sees it as `/run/node` and can write there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log of a program of the node: `kubelet`, `containerd`, `console`, and the names given to
    /// [`Node::spawn_kept`].
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// Runs a command in the node, as root and outside of all containers.
    pub fn exec(&self, argv: &[&str]) -> Result<Output> {
        self.exec_with(&Request::new(argv.iter().copied()), b"", COMMAND_LIMIT)
    }

    /// The same with environment, directory, standard input and a time limit.
    pub fn exec_with(&self, request: &Request, stdin: &[u8], timeout: Duration) -> Result<Output> {
        exec::run(&self.target(), request, stdin, timeout).with_context(|| format!("in {}", self.name()))
    }

    /// Standard output of a command that must succeed.
    pub fn exec_ok(&self, argv: &[&str]) -> Result<String> {
        self.exec(argv)?.success().with_context(|| format!("{} in {}", argv.join(" "), self.name()))
    }

    /// Standard output of a shell script that must succeed.
    pub fn script(&self, script: &str) -> Result<String> {
        self.script_with_input(script, b"")
    }

    /// The same with standard input.
    pub fn script_with_input(&self, script: &str, stdin: &[u8]) -> Result<String> {
        let output = self.exec_with(&Request::new(["bash", "-euc", script]), stdin, COMMAND_LIMIT)?;
        output.success().with_context(|| format!("in {}: {script}", self.name()))
    }

    /// Where the node's agent listens.
    pub fn target(&self) -> Target {
        Target::inside(self.cluster.netns(), SocketAddr::new(IpAddr::V4(self.spec.address), AGENT_PORT))
    }

    /// Starts a program that is started again whenever it ends, as systemd would, and after a restart of the node; a
    /// test may kill it. Its output goes to [`Node::log`].
    pub fn spawn_kept<S: Into<String>>(
        &self,
        name: &str,
        argv: impl IntoIterator<Item = S>,
        env: &BTreeMap<String, String>,
    ) -> Result<()> {
        let mut request = self.init_request("start", name);
        request.argv.extend(argv.into_iter().map(Into::into));
        request.env.clone_from(env);
        let output = self.exec_with(&request, b"", COMMAND_LIMIT)?;
        output.success().with_context(|| format!("start {name} in {}", self.name()))?;
        // For the next boot.
        let path = self.kept(name);
        fs::create_dir_all(self.directory.join(KEPT))
            .and_then(|()| fs::write(&path, start_script(&request)))
            .with_context(|| format!("write {}", path.display()))
    }

    /// Ends a program that [`Node::spawn_kept`] started, and all that it started; TERM first, KILL after five seconds.
    /// `kubelet` and `containerd` end alone: their containers go on.
    pub fn stop_kept(&self, name: &str) -> Result<()> {
        let output = self.exec_with(&self.init_request("stop", name), b"", COMMAND_LIMIT)?;
        output.success().with_context(|| format!("stop {name} in {}", self.name()))?;
        let path = self.kept(name);
        // There is none for kubelet and containerd.
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
        } else {
            Ok(())
        }
    }

    /// Kills the process of such a program, which comes back half a second later.
    pub fn kill_kept(&self, name: &str) -> Result<()> {
        let output = self.exec_with(&self.init_request("kill", name), b"", COMMAND_LIMIT)?;
        output.success().with_context(|| format!("kill {name} in {}", self.name()))?;
        Ok(())
    }

    fn kept(&self, name: &str) -> PathBuf {
        self.directory.join(KEPT).join(name)
    }

    fn init_request(&self, mode: &str, name: &str) -> Request {
        let init = self.cluster.directory().join(INIT_FILE);
        Request::new([init.to_string_lossy().as_ref(), mode, name])
    }

    /// Reboots the node with its disks kept, and returns when it is Ready again. With `crash` it loses its power
    /// instead: what it had not written is lost.
    pub fn restart(&self, crash: bool) -> Result<()> {
        let old = self.api_object()?.and_then(|node| boot_id(&node).map(str::to_owned));
        if crash {
            stop_file(&pid_file(&self.directory), Duration::ZERO)?;
        } else {
            self.power_off()?;
        }
        self.boot(Instant::now() + READY_LIMIT, old.as_deref()).with_context(|| format!("restart {}", self.name()))
    }

    /// Powers the node off and removes its disks and its files. Its Node object stays, as after a real breakdown.
    pub fn down(&self) -> Result<()> {
        self.power_off()?;
        self.network.disconnect(self.cluster.netns())?;
        fs::remove_dir_all(&self.directory).with_context(|| format!("remove {}", self.directory.display()))
    }

    /// For a cluster that ends and needs nothing of the node but its logs: powers it off.
    pub(crate) fn stop_in(cluster: &Path, name: &str) -> Result<()> {
        let directory = cluster.join("nodes").join(name);
        if let Ok(spec) = NodeSpec::read(&directory) {
            let netns = NetNs::at(&cluster.join("netns"));
            power_off(&directory, &Target::inside(&netns, SocketAddr::new(IpAddr::V4(spec.address), AGENT_PORT)))?;
        }
        Ok(())
    }

    pub(crate) fn load_images(&self, archive: &Path) -> Result<()> {
        let content = fs::read(archive).with_context(|| format!("read {}", archive.display()))?;
        // kubelet sees only images with this label. Over the agent, because a guest may have an older state of the file
        // in its cache.
        let label = "io.cri-containerd.image=managed";
        let request = Request::new(["ctr", "images", "import", "--local", "--label", label, "-"]);
        let output = self.exec_with(&request, &content, COMMAND_LIMIT)?;
        output.success().with_context(|| format!("import {} in {}", archive.display(), self.name()))?;
        Ok(())
    }
}
