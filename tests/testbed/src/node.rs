//! A Kubernetes node in a User-Mode Linux guest: containerd, kubelet and real LVM, joined to a cluster.

mod boot;
mod prepare;
mod spec;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::boot::{boot_id, pid_file, power_off};
use self::prepare::start_script;
pub use self::spec::NodeSpec;
use crate::control_plane::ControlPlane;
use crate::exec::{self, Output, Request, Target};
use crate::log;
use crate::netns::NetNs;
use crate::network::NodeNetwork;
use crate::process::stop_file;

/// Process 1 of a node: a shell script.
pub(crate) const INIT: &str = include_str!("../init/node-init");
/// File name of [`INIT`] in the directory of a cluster.
pub(crate) const INIT_FILE: &str = "node-init";

/// Directory of a node with a script for each program that its boot starts.
const KEPT: &str = "kept";
const AGENT_PORT: u16 = 7070;
/// Time that a node has to become Ready, also while others start and a build runs on the same two CPUs.
const READY_TIMEOUT: Duration = Duration::from_mins(3);
/// Time that a command in a node has.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(5);

/// A handle of a node: dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct Node {
    control_plane: Arc<ControlPlane>,
    directory: PathBuf,
    network: NodeNetwork,
    spec: NodeSpec,
}

impl Node {
    /// Starts a node and waits until it is Ready. A start that fails leaves nothing behind.
    pub(crate) fn start(control_plane: &Arc<ControlPlane>, spec: &NodeSpec) -> Result<Self> {
        let network = NodeNetwork::new(spec.address)?;
        let directory = control_plane.directory.join("nodes").join(&spec.name);
        if fs::exists(&directory)? {
            bail!("the cluster has a node {} already", spec.name);
        }
        fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
        let node = Self { control_plane: Arc::clone(control_plane), directory, network, spec: spec.clone() };
        node.prepare()
            .and_then(|()| node.boot(Instant::now() + READY_TIMEOUT, None))
            .inspect_err(|_| drop(node.down()))
            .with_context(|| format!("start {}", spec.name))?;
        Ok(node)
    }

    /// Opens a node that was started earlier.
    pub(crate) fn open(control_plane: &Arc<ControlPlane>, name: &str) -> Result<Self> {
        let directory = control_plane.directory.join("nodes").join(name);
        let spec = NodeSpec::read(&directory).with_context(|| format!("the cluster has no node {name}"))?;
        let network = NodeNetwork::new(spec.address)?;
        Ok(Self { control_plane: Arc::clone(control_plane), directory, network, spec })
    }

    /// Returns the specification that it was started with.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the directory of its files on this machine: disks and logs. The guest sees it as `/run/node` and can
    /// write there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the log of a program of the node: `kubelet`, `containerd`, `console`, and the names given to
    /// [`Node::spawn_kept`].
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// Returns the last lines of such a log.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        log::tail(&self.log(name), lines)
    }

    /// Runs a command in the node, as root and outside of all containers.
    pub fn exec(&self, argv: &[&str]) -> Result<Output> {
        self.exec_with(&Request::new(argv.iter().copied()), b"", COMMAND_TIMEOUT)
    }

    /// Runs a command as [`Self::exec`] does, with environment, directory, standard input and a timeout.
    pub fn exec_with(&self, request: &Request, stdin: &[u8], timeout: Duration) -> Result<Output> {
        exec::run(&self.target(), request, stdin, timeout).with_context(|| format!("in {}", self.name()))
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub fn exec_ok(&self, argv: &[&str]) -> Result<String> {
        self.exec(argv)?.success().with_context(|| format!("{} in {}", argv.join(" "), self.name()))
    }

    /// Runs a shell script that must succeed, and returns its standard output.
    pub fn script(&self, script: &str) -> Result<String> {
        self.script_with_input(script, b"")
    }

    /// Runs a shell script as [`Self::script`] does, with standard input.
    pub fn script_with_input(&self, script: &str, stdin: &[u8]) -> Result<String> {
        let output = self.exec_with(&Request::new(["bash", "-euc", script]), stdin, COMMAND_TIMEOUT)?;
        output.success().with_context(|| format!("in {}: {script}", self.name()))
    }

    /// Returns the address of the node's agent.
    pub fn target(&self) -> Target {
        Target::inside(&self.control_plane.netns, SocketAddr::new(IpAddr::V4(self.spec.address), AGENT_PORT))
    }

    /// Starts a program that is restarted whenever it ends, as systemd would, and after a restart of the node; a test
    /// may kill it. Its output goes to [`Node::log`].
    pub fn spawn_kept<S: Into<String>>(
        &self,
        name: &str,
        argv: impl IntoIterator<Item = S>,
        env: &BTreeMap<String, String>,
    ) -> Result<()> {
        let mut request = self.init_request("start", name);
        request.argv.extend(argv.into_iter().map(Into::into));
        request.env.clone_from(env);
        let output = self.exec_with(&request, b"", COMMAND_TIMEOUT)?;
        output.success().with_context(|| format!("start {name} in {}", self.name()))?;
        // For the next boot.
        let path = self.kept_script(name);
        fs::create_dir_all(self.directory.join(KEPT))
            .and_then(|()| fs::write(&path, start_script(&request)))
            .with_context(|| format!("write {}", path.display()))
    }

    /// Stops a program that [`Node::spawn_kept`] started, and all that it started; TERM first, KILL after five seconds.
    /// Containers continue to run after `kubelet` and `containerd` have ended.
    pub fn stop_kept(&self, name: &str) -> Result<()> {
        let output = self.exec_with(&self.init_request("stop", name), b"", COMMAND_TIMEOUT)?;
        output.success().with_context(|| format!("stop {name} in {}", self.name()))?;
        let path = self.kept_script(name);
        // There is none for kubelet and containerd.
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
        } else {
            Ok(())
        }
    }

    /// Kills a program that [`Node::spawn_kept`] started; it is restarted half a second later.
    pub fn kill_kept(&self, name: &str) -> Result<()> {
        let output = self.exec_with(&self.init_request("kill", name), b"", COMMAND_TIMEOUT)?;
        output.success().with_context(|| format!("kill {name} in {}", self.name()))?;
        Ok(())
    }

    /// Returns the path of the script that starts a program at the next boot.
    fn kept_script(&self, name: &str) -> PathBuf {
        self.directory.join(KEPT).join(name)
    }

    /// Returns the request for `node-init` to start, stop or kill a program.
    fn init_request(&self, mode: &str, name: &str) -> Request {
        let init = self.control_plane.directory.join(INIT_FILE);
        Request::new([init.to_string_lossy().as_ref(), mode, name])
    }

    /// Reboots the node with its disks kept, and waits until it is Ready again. With `crash` it loses its power
    /// instead: unwritten data is lost.
    pub fn restart(&self, crash: bool) -> Result<()> {
        let old = self.api_object()?.and_then(|node| boot_id(&node).map(str::to_owned));
        if crash {
            stop_file(&pid_file(&self.directory), Duration::ZERO)?;
        } else {
            self.power_off()?;
        }
        self.boot(Instant::now() + READY_TIMEOUT, old.as_deref()).with_context(|| format!("restart {}", self.name()))
    }

    /// Powers the node off and removes its disks and its files. Its Node object stays, as after a real breakdown.
    pub fn down(&self) -> Result<()> {
        self.power_off()?;
        self.network.disconnect(&self.control_plane.netns)?;
        fs::remove_dir_all(&self.directory).with_context(|| format!("remove {}", self.directory.display()))
    }

    /// Powers off a node of a cluster that ends and needs nothing of it but its logs.
    pub(crate) fn stop_in(cluster: &Path, name: &str) -> Result<()> {
        let directory = cluster.join("nodes").join(name);
        if let Ok(spec) = NodeSpec::read(&directory) {
            let netns = NetNs::at(&cluster.join("netns"));
            power_off(&directory, &Target::inside(&netns, SocketAddr::new(IpAddr::V4(spec.address), AGENT_PORT)))?;
        }
        Ok(())
    }

    /// Imports the images of an OCI archive into containerd.
    pub(crate) fn load_images(&self, archive: &Path) -> Result<()> {
        let content = fs::read(archive).with_context(|| format!("read {}", archive.display()))?;
        // kubelet sees only images with this label. Over the agent, because a guest may have an older state of the file
        // in its cache.
        let label = "io.cri-containerd.image=managed";
        let request = Request::new(["ctr", "images", "import", "--local", "--label", label, "-"]);
        let output = self.exec_with(&request, &content, COMMAND_TIMEOUT)?;
        output.success().with_context(|| format!("import {} in {}", archive.display(), self.name()))?;
        Ok(())
    }
}
