//! Start and end of a cluster.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{Cluster, ClusterSpec};
use crate::assets::KubernetesTools;
use crate::control_plane::{AUDIT_POLICY, ControlPlane};
use crate::image::{self, Compression, Image};
use crate::kubeconfig::{self, Credential};
use crate::netns::NetNs;
use crate::network::{self, API_SERVER};
use crate::node::{INIT, INIT_FILE, Node};
use crate::process::Process;
use crate::processes::Processes;
use crate::reaper;
use crate::reexec::{self, program_path};

/// Names of the processes, in the order in which they are killed: nothing of them is kept, and a graceful end of the
/// API server takes seconds.
const PROCESSES: [&str; 6] = ["proxy", "forward", "scheduler", "controller-manager", "apiserver", "etcd"];

/// Starts a cluster in an empty directory, and returns when pods can be created.
pub(super) fn start(directory: &Path, tools: &KubernetesTools, spec: &ClusterSpec) -> Result<Cluster> {
    for part in ["pki", "log", "run", "etcd", "nodes"] {
        fs::create_dir(directory.join(part)).with_context(|| format!("create {part} in {}", directory.display()))?;
    }
    Processes::new(directory).start(reaper::NAME, &reaper::command(directory)?)?;
    symlink(&tools.bin, directory.join("bin")).context("link the programs")?;
    symlink(&tools.crds, directory.join("crds")).context("link the CRDs")?;
    let control_plane = Arc::new(ControlPlane::create(directory)?);
    if let Some(policy) = &spec.audit_policy {
        fs::write(directory.join(AUDIT_POLICY), policy).context("write the audit policy")?;
    }
    control_plane.write_certificates()?;
    network::prepare(&NetNs::create(control_plane.netns.path())?)?;
    control_plane.start_storage()?;

    // The API server takes seconds; the rest is prepared in the meantime.
    control_plane.write_configuration(spec.scheduler_config.as_deref())?;
    write_init(&directory.join(INIT_FILE))?;
    let images: Vec<_> = Image::standard()?.into_iter().chain(spec.images.iter().cloned()).collect();
    image::write_archive(&directory.join("images.tar"), &images, Compression::None)?;
    let cluster = Cluster { control_plane };
    start_forward(&cluster)?;

    cluster.control_plane.wait_for_api()?;
    cluster.control_plane.start_controllers()?;
    start_proxy(&cluster)?;
    cluster.control_plane.wait_for_controllers()?;
    Ok(cluster)
}

fn write_init(path: &Path) -> Result<()> {
    fs::write(path, INIT)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {}", path.display()))
}

/// Forwards a port of this machine to the API server, and writes a kubeconfig for it.
fn start_forward(cluster: &Cluster) -> Result<()> {
    let control_plane = &cluster.control_plane;
    let port_file = control_plane.directory.join("run/host-port");
    let mut command = Command::new(program_path()?);
    command.arg(reexec::FORWARD).arg(control_plane.netns.path()).arg(API_SERVER.to_string()).arg(&port_file);
    control_plane.processes.start("forward", &command)?;
    let read_port = || fs::read_to_string(&port_file).context("no port yet");
    let port = control_plane.processes.wait_until_ready("forward", read_port)?;
    let server = format!("https://127.0.0.1:{port}");
    let admin = Credential::Certificate(&control_plane.admin);
    kubeconfig::write(&cluster.kubeconfig(), &server, control_plane.pki.authority(), &admin)
}

/// Starts the proxy of the Services.
fn start_proxy(cluster: &Cluster) -> Result<()> {
    let mut command = cluster.netns().command(program_path()?);
    command.arg(reexec::PROXY).arg(cluster.inner_kubeconfig());
    cluster.control_plane.processes.start("proxy", &command)
}

/// Stops all processes of a cluster, started completely or not.
pub(super) fn stop_processes(directory: &Path) -> Result<()> {
    let names = node_names(directory)?;
    in_parallel(&names, |name| Node::stop_in(directory, name))?;
    let processes = Processes::new(directory);
    let this = Process::current()?;
    let others = processes.names()?;
    // Programs that a test has started are stopped first: they are clients of the control plane.
    for name in others.iter().map(String::as_str).filter(|name| !PROCESSES.contains(name)).chain(PROCESSES) {
        // The reaper does not end itself.
        if processes.process(name)? != Some(this) {
            processes.stop(name, Duration::ZERO)?;
        }
    }
    Ok(())
}

/// Stops all processes of a cluster and removes its directory.
pub(crate) fn remove_directory(directory: &Path) -> Result<()> {
    stop_processes(directory)?;
    // The last reference: bridge and taps go with the namespace.
    NetNs::at(&directory.join("netns")).remove()?;
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}

/// Copies the logs of a cluster and of its nodes.
pub(super) fn copy_logs(directory: &Path, to: &Path) -> Result<()> {
    copy_logs_of(&directory.join("log"), to)?;
    for name in node_names(directory)? {
        copy_logs_of(&directory.join("nodes").join(&name), &to.join(&name))?;
    }
    Ok(())
}

fn copy_logs_of(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let path = entry?.path();
        if let (Some("log"), Some(name)) = (path.extension().and_then(OsStr::to_str), path.file_name()) {
            fs::copy(&path, to.join(name)).with_context(|| format!("copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the names of the nodes in the directory of a cluster, sorted.
pub(super) fn node_names(directory: &Path) -> Result<Vec<String>> {
    let directory = directory.join("nodes");
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Runs an action for each item, each in a separate thread, and waits for all. Returns the first error.
pub(super) fn in_parallel<T: Sync, R: Send>(all: &[T], action: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let action = &action;
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || action(one))).collect();
        let results: Vec<Result<R>> =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect();
        results.into_iter().collect()
    })
}
