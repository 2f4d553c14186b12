//! A cluster from nothing to the first pod, and back to nothing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::{Cluster, ClusterSpec};
use crate::assets::KubernetesTools;
use crate::control_plane::{AUDIT_POLICY, ControlPlane, Processes, scheduler_config};
use crate::image::{self, Compression, Image};
use crate::kubeconfig::{self, Credential};
use crate::netns::NetNs;
use crate::network::{self, API_SERVER};
use crate::node::{INIT, INIT_FILE, Node};
use crate::pki::Pki;
use crate::process::Process;
use crate::program;
use crate::reaper;

/// The file with the configuration of kube-scheduler, in the directory of the cluster.
pub(super) const SCHEDULER_CONFIG: &str = "scheduler.yaml";
/// Stopped in this order. Killed: nothing of them is kept, and a graceful end of the API server takes seconds.
const PROCESSES: [&str; 6] = ["proxy", "forward", "scheduler", "controller-manager", "apiserver", "etcd"];

pub(super) fn start(directory: &Path, tools: &KubernetesTools, spec: &ClusterSpec) -> Result<Cluster> {
    for part in ["pki", "log", "run", "etcd", "nodes"] {
        fs::create_dir(directory.join(part)).with_context(|| format!("create {part} in {}", directory.display()))?;
    }
    let processes = Processes::new(directory);
    processes.start(reaper::NAME, &reaper::command(directory)?)?;
    symlink(&tools.bin, directory.join("bin")).context("link the programs")?;
    symlink(&tools.crds, directory.join("crds")).context("link the CRDs")?;
    let pki = Pki::create(&directory.join("pki"))?;
    let admin = pki.client("admin", Some("system:masters"))?;
    admin.write(&directory.join("pki"), "admin")?;
    let cluster = Cluster::assemble(directory.to_owned(), pki, admin)?;
    let (pki, netns) = (cluster.pki(), cluster.netns());
    let control_plane =
        ControlPlane { directory, netns, tools: &tools.bin, pki, https: &cluster.inner.https, processes: &processes };
    if let Some(policy) = &spec.audit_policy {
        fs::write(directory.join(AUDIT_POLICY), policy).context("write the audit policy")?;
    }
    control_plane.certificates()?;
    network::prepare(NetNs::create(netns.path()).map(|_| netns)?)?;
    control_plane.start_storage()?;

    // The API server takes seconds; everything else is made ready meanwhile.
    cluster.write_kubeconfig(&cluster.inner_kubeconfig(), &Credential::Certificate(&cluster.inner.admin))?;
    for (file, user) in
        [("controller-manager", "system:kube-controller-manager"), ("scheduler", "system:kube-scheduler")]
    {
        let identity = pki.client(user, None)?;
        let path = directory.join(format!("{file}.kubeconfig"));
        cluster.write_kubeconfig(&path, &Credential::Certificate(&identity))?;
    }
    let scheduler = directory.join(SCHEDULER_CONFIG);
    let text = scheduler_config(&directory.join("scheduler.kubeconfig"), spec.scheduler_config.as_deref());
    fs::write(&scheduler, text).with_context(|| format!("write {}", scheduler.display()))?;
    write_init(&directory.join(INIT_FILE))?;
    let images: Vec<_> = Image::standard()?.into_iter().chain(spec.images.iter().cloned()).collect();
    image::write_archive(&directory.join("images.tar"), &images, Compression::None)?;
    forward(&cluster)?;

    control_plane.wait_for_api()?;
    control_plane.start_controllers(&scheduler)?;
    let mut proxy = netns.command(program::path()?);
    proxy.arg(program::PROXY).arg(cluster.inner_kubeconfig());
    processes.start("proxy", &proxy)?;
    control_plane.wait_for_controllers()?;
    Ok(cluster)
}

pub(super) fn start_api_server(cluster: &Cluster) -> Result<()> {
    let tools = cluster.directory().join("bin");
    let control_plane = control_plane(cluster, &tools);
    control_plane.start_api_server()?;
    control_plane.wait_for_api()
}

/// The control plane of a cluster that was started, with its programs in `tools`.
pub(super) fn control_plane<'a>(cluster: &'a Cluster, tools: &'a Path) -> ControlPlane<'a> {
    ControlPlane {
        directory: cluster.directory(),
        netns: cluster.netns(),
        tools,
        pki: cluster.pki(),
        https: &cluster.inner.https,
        processes: cluster.processes(),
    }
}

fn write_init(path: &Path) -> Result<()> {
    fs::write(path, INIT)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {}", path.display()))
}

/// The way in from this machine's own namespace.
fn forward(cluster: &Cluster) -> Result<()> {
    let port_file = cluster.directory().join("run/host-port");
    let mut command = Command::new(program::path()?);
    command.arg(program::FORWARD).arg(cluster.netns().path()).arg(API_SERVER.to_string()).arg(&port_file);
    cluster.processes().start("forward", &command)?;
    let port = cluster.processes().ready("forward", || fs::read_to_string(&port_file).context("no port yet"))?;
    let server = format!("https://127.0.0.1:{port}");
    let admin = Credential::Certificate(&cluster.inner.admin);
    kubeconfig::write(&cluster.kubeconfig(), &server, cluster.pki().authority(), &admin)
}

/// Stops all processes of a cluster, started completely or not.
pub(super) fn stop(directory: &Path) -> Result<()> {
    let names = node_names(directory)?;
    in_parallel(&names, |name| Node::stop_in(directory, name))?;
    let processes = Processes::new(directory);
    let this = Process::current()?;
    let others = processes.names()?;
    // What a test started beside the control plane goes first: it is a client.
    for name in others.iter().map(String::as_str).filter(|name| !PROCESSES.contains(name)).chain(PROCESSES) {
        // The reaper does not end itself.
        if processes.process(name)? != Some(this) {
            processes.stop(name, Duration::ZERO)?;
        }
    }
    Ok(())
}

pub(crate) fn remove(directory: &Path) -> Result<()> {
    stop(directory)?;
    // The last reference: bridge and taps go with the namespace.
    NetNs::at(&directory.join("netns")).remove()?;
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}

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

/// Does the same with all, each in a thread of its own, and waits for all; the first error counts.
pub(super) fn in_parallel<T: Sync, R: Send>(all: &[T], action: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let action = &action;
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || action(one))).collect();
        let results: Vec<Result<R>> =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect();
        results.into_iter().collect()
    })
}
