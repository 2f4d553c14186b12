//! The product on a cluster: its own programs, freshly built, where a deployment would have them.
//!
//! topolvm-controller and the sidecars run on this machine inside the cluster's namespace, lvmd and topolvm-node in the
//! nodes, which see this machine's files. Each has the rights of its ServiceAccount and no more.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::storage::v1::CSINode;
use topolvm_api::ApiFlavor;

use crate::cluster::{Cluster, ClusterSpec};
use crate::kubeconfig::Credential;
use crate::log;
use crate::node::{Node, NodeSpec};
use crate::sidecars::{self, NAMESPACE, Sidecar};
use crate::size::GIB;

/// Names of the product's processes, and of their logs: `log/NAME.log` of the cluster, [`Node::log`] of a node.
pub const CONTROLLER: &str = "topolvm-controller";
/// See [`CONTROLLER`].
pub const NODE: &str = "topolvm-node";
/// See [`CONTROLLER`].
pub const LVMD: &str = "lvmd";
/// lvmd's socket in a node.
pub const LVMD_SOCKET: &str = "/run/topolvm/lvmd.sock";

/// Volume group of [`TopolvmSpec::with_thin_class`].
pub const THIN_VG: &str = "thinvg";
/// Its thin pool.
pub const THIN_POOL: &str = "pool0";
/// Its device class.
pub const THIN_CLASS: &str = "thin";
/// So many times its size it promises.
pub const THIN_OVERPROVISION: u64 = 20;

/// Device classes of [`TopolvmSpec::with_raid_classes`], and their volume groups. Volumes of the first are mirrored;
/// those of the second by the class `mirrored` of options for lvcreate.
pub const RAID_CLASSES: [&str; 2] = ["raid", "plain"];

const LVMD_CONFIG: &str = "/etc/topolvm/lvmd.yaml";
/// One device class on the volume group that every node of the test bed has; nothing is held back, so that sizes are
/// easy to reckon.
const DEFAULT_LVMD_CONFIG: &str = "\
socket-name: /run/topolvm/lvmd.sock
lvm-command-prefix: [/sbin/lvm]
device-classes:
- {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}
";
/// For a program to end in order.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const START_LIMIT: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What differs between test clusters.
#[derive(Debug, Clone)]
pub struct TopolvmSpec {
    /// The API group that all programs speak.
    pub flavor: ApiFlavor,
    /// The cluster itself.
    pub cluster: ClusterSpec,
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// The directory with the product's programs.
    pub programs: PathBuf,
    /// A shell script for each node, run before lvmd starts, and again when the programs are started after a restart of
    /// the node.
    pub node_script: String,
    /// The kustomization to apply.
    pub manifests: PathBuf,
    /// The file lvmd.yaml of all nodes.
    pub lvmd_config: String,
    /// The sidecars to start.
    pub sidecars: Vec<Sidecar>,
    /// Further arguments of topolvm-controller.
    pub controller_arguments: Vec<String>,
    /// Further arguments of topolvm-node.
    pub node_arguments: Vec<String>,
    /// Whether lvmd runs in the process of topolvm-node.
    pub embed_lvmd: bool,
    /// Whether the product and its sidecars run as the pods of the manifests, with their roles; the cluster must have
    /// the images. Without, its programs are processes of the bed, which tests can kill and replace, and the manifests'
    /// workloads are left out.
    pub in_pods: bool,
}

impl TopolvmSpec {
    /// So many standard nodes, csi-provisioner and csi-resizer, and the programs that cargo built beside this one.
    pub fn nodes(number: u8) -> Result<Self> {
        Ok(Self {
            flavor: ApiFlavor::TopoLvm,
            cluster: ClusterSpec::default(),
            nodes: (1..=number).map(NodeSpec::number).collect(),
            programs: built_programs()?,
            node_script: String::new(),
            manifests: manifests().join("base"),
            lvmd_config: DEFAULT_LVMD_CONFIG.to_owned(),
            sidecars: vec![Sidecar::Provisioner, Sidecar::Resizer],
            controller_arguments: Vec::new(),
            node_arguments: Vec::new(),
            embed_lvmd: false,
            in_pods: false,
        })
    }

    /// The same for the older API group: its manifests, and programs that speak it.
    #[must_use]
    pub fn legacy(mut self) -> Self {
        self.flavor = ApiFlavor::Legacy;
        self.manifests = manifests().join("overlays/legacy");
        self
    }

    /// Adds snapshots: csi-snapshotter, snapshot-controller and their definitions.
    #[must_use]
    pub fn with_snapshots(mut self) -> Self {
        self.sidecars.extend([Sidecar::SnapshotController, Sidecar::Snapshotter]);
        self
    }

    /// csi-provisioner with the flags of TopoLVM's chart instead of those that are better: without `--strict-topology`
    /// above all.
    #[must_use]
    pub fn with_upstream_provisioner(mut self) -> Self {
        for sidecar in &mut self.sidecars {
            if *sidecar == Sidecar::Provisioner {
                *sidecar = Sidecar::UpstreamProvisioner;
            }
        }
        self
    }

    /// The environment that makes the programs speak the flavor.
    fn environment(&self) -> Option<(String, String)> {
        (self.flavor == ApiFlavor::Legacy).then(|| ("USE_LEGACY".to_owned(), "true".to_owned()))
    }

    /// Adds the device class [`THIN_CLASS`]: a thin pool of 6 GiB that promises [`THIN_OVERPROVISION`] times that, in
    /// the volume group [`THIN_VG`] on a disk of its own.
    #[must_use]
    pub fn with_thin_class(mut self) -> Self {
        for node in &mut self.nodes {
            node.spare_disks.insert(0, 8 * GIB);
        }
        // Spare disks come after the one of the volume group
        let disk = "/dev/ubdd";
        // Writing to text cannot fail
        let _written = writeln!(
            self.node_script,
            "vgs {THIN_VG} >/dev/null 2>&1 || {{ vgcreate -q {THIN_VG} {disk} && lvcreate -qy -L6g -T {THIN_VG}/{THIN_POOL}; }}"
        );
        let _written = writeln!(
            self.lvmd_config,
            "- {{name: {THIN_CLASS}, volume-group: {THIN_VG}, spare-gb: 0, type: thin, \
             thin-pool: {{name: {THIN_POOL}, overprovision-ratio: {THIN_OVERPROVISION}}}}}"
        );
        self
    }

    /// Adds the device classes [`RAID_CLASSES`], each in a volume group of its own name on two disks of 512 MiB. After
    /// [`with_thin_class`](Self::with_thin_class).
    #[must_use]
    pub fn with_raid_classes(mut self) -> Self {
        for node in &mut self.nodes {
            node.spare_disks.extend([GIB / 2; 4]);
        }
        for (group, disks) in RAID_CLASSES.iter().zip(["/dev/ubde /dev/ubdf", "/dev/ubdg /dev/ubdh"]) {
            // Writing to text cannot fail
            let _written = writeln!(self.node_script, "vgs {group} >/dev/null 2>&1 || vgcreate -q {group} {disks}");
            let _written = write!(self.lvmd_config, "- {{name: {group}, volume-group: {group}, spare-gb: 0");
            self.lvmd_config += if *group == "raid" { ", lvcreate-options: [--type=raid1]}\n" } else { "}\n" };
        }
        self.lvmd_config += "lvcreate-option-classes:\n- {name: mirrored, options: [--type=raid1]}\n";
        self
    }
}

/// A cluster that has the product. Dropping it changes nothing; [`Cluster::down`] ends it.
#[derive(Debug)]
pub struct Topolvm {
    /// The cluster.
    pub cluster: Cluster,
    /// The nodes in the order of their specifications.
    pub nodes: Vec<Node>,
}

/// A standard cluster with the product on so many nodes, ready for claims. A start that fails leaves nothing behind.
pub fn up(directory: &Path, nodes: u8) -> Result<Topolvm> {
    up_with(directory, &TopolvmSpec::nodes(nodes)?)
}

/// The same made to measure.
pub fn up_with(directory: &Path, spec: &TopolvmSpec) -> Result<Topolvm> {
    for program in [CONTROLLER, NODE, LVMD] {
        let path = spec.programs.join(program);
        if !path.is_file() {
            bail!("no {}: run cargo build --workspace first", path.display());
        }
    }
    let cluster = Cluster::up(directory, &spec.cluster)?;
    install(&cluster, spec)
        .inspect_err(|_| drop(cluster.down(None)))
        .map(|nodes| Topolvm { cluster: cluster.clone(), nodes })
}

/// Puts the product on a cluster without nodes, adds the nodes, and returns when claims can be made.
fn install(cluster: &Cluster, spec: &TopolvmSpec) -> Result<Vec<Node>> {
    // The nodes boot while everything else is started.
    thread::scope(|scope| {
        let nodes = scope.spawn(|| cluster.add_nodes(&spec.nodes));
        let rest = install_controller(cluster, spec);
        let nodes = nodes.join().map_err(|_| anyhow!("a thread panicked"))?;
        rest?;
        let nodes = nodes?;
        if spec.in_pods {
            start_pods(cluster, &nodes, spec)?;
        } else {
            for node in &nodes {
                start_node_programs(cluster, node, spec)?;
            }
        }
        for node in &nodes {
            wait_for_driver(cluster, node, spec.flavor)?;
        }
        Ok(nodes)
    })
}

/// Ends the programs except lvmd, as when a cluster is switched over. Volumes, mounts and objects stay as they are.
pub fn stop(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    for node in nodes {
        node.stop_kept(NODE)?;
    }
    for sidecar in &spec.sidecars {
        sidecar.stop(cluster)?;
    }
    cluster.stop(CONTROLLER, STOP_LIMIT)
}

/// Starts the programs again that [`stop`] has ended, or those of another specification on the same nodes.
pub fn start(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    install_controller(cluster, spec)?;
    for node in nodes {
        start_agent(cluster, node, spec)?;
    }
    nodes.iter().try_for_each(|node| wait_for_driver(cluster, node, spec.flavor))
}

/// Starts the product as the pods of its manifests, and returns when they are ready.
fn start_pods(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    if !spec.node_script.is_empty() {
        for node in nodes {
            node.script(&spec.node_script).context("the script that prepares the node failed")?;
        }
    }
    roll_out(cluster, &spec.manifests)
}

/// Applies a kustomization with its workloads, and returns when all of the product's pods are those that it describes.
pub fn roll_out(cluster: &Cluster, manifests: &Path) -> Result<()> {
    apply_manifests(cluster, manifests, |_| true)?;
    let rolled_out = |workload: &str| {
        let waiting = ["rollout", "status", "--namespace", NAMESPACE, "--timeout=120s", workload];
        cluster.kubectl_ok(waiting).map(drop)
    };
    let workloads = cluster.kubectl_ok(["get", "--namespace", NAMESPACE, "deployments,daemonsets", "-o", "name"])?;
    let pods = || {
        let pods = cluster.kubectl_ok(["describe", "pods", "--namespace", NAMESPACE]).unwrap_or_default();
        let log = ["logs", "--namespace", NAMESPACE, "--all-containers", "--prefix", "--tail=20"];
        let selected = ["--selector=app.kubernetes.io/name=topolvm", "--max-log-requests=40"];
        pods + &cluster.kubectl_ok(log.into_iter().chain(selected)).unwrap_or_default()
    };
    workloads.lines().try_for_each(rolled_out).with_context(pods)
}

/// Applies those objects of a kustomization of which the text is wanted.
fn apply_manifests(cluster: &Cluster, directory: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    let all = cluster.kubectl_ok([Path::new("kustomize"), directory])?;
    let wanted: Vec<&str> = all.split("\n---\n").filter(|object| is_wanted(object)).collect();
    let file = cluster.directory().join("manifests.yaml");
    fs::write(&file, wanted.join("\n---\n")).with_context(|| format!("write {}", file.display()))?;
    let apply = ["apply", "--server-side", "--force-conflicts", "-f"];
    cluster.kubectl_ok(apply.iter().map(Path::new).chain([file.as_path()])).map(drop)
}

/// Whether an object in YAML makes pods.
fn is_workload(object: &str) -> bool {
    object.lines().any(|line| ["kind: Deployment", "kind: DaemonSet", "kind: PodDisruptionBudget"].contains(&line))
}

fn install_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    let apply = ["apply", "--server-side", "--force-conflicts"];
    apply_manifests(cluster, &spec.manifests, |object| !is_workload(object))?;
    let storage_class = manifests().join("base/storageclass.yaml");
    cluster.kubectl_ok(apply.iter().map(Path::new).chain([Path::new("-f"), &storage_class]))?;
    if spec.sidecars.contains(&Sidecar::SnapshotController) {
        sidecars::apply_snapshot_crds(cluster)?;
    }
    cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"])?;
    if spec.in_pods {
        return spec
            .sidecars
            .iter()
            .filter(|sidecar| **sidecar == Sidecar::SnapshotController)
            .try_for_each(|sidecar| sidecar.start(cluster, &controller_socket(cluster)));
    }
    let kubeconfig = cluster.directory().join("topolvm-controller.kubeconfig");
    write_account_kubeconfig(cluster, CONTROLLER, None, &kubeconfig)?;
    start_controller(cluster, spec)?;
    spec.sidecars.iter().try_for_each(|sidecar| sidecar.start(cluster, &controller_socket(cluster)))
}

/// The socket of the CSI controller service.
pub fn controller_socket(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("controller/csi.sock")
}

/// Whether the controller that serves metrics at this address of the cluster's namespace says that it leads.
pub fn is_leading(cluster: &Cluster, address: &str) -> Result<bool> {
    let url = format!("http://{address}/metrics");
    let output = cluster.command("curl").args(["-sf", "--max-time", "5", &url]).output().context("run curl")?;
    let metrics = String::from_utf8_lossy(&output.stdout);
    let said = metrics.lines().find(|line| line.starts_with("leader_election_master_status{"));
    said.map(|line| line.ends_with(" 1")).with_context(|| format!("{address} does not say whether it leads"))
}

/// Starts topolvm-controller and waits until its socket answers; also after a test has stopped it with
/// [`Cluster::stop`].
pub fn start_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    let socket = controller_socket(cluster);
    cluster.spawn(CONTROLLER, &controller_command(cluster, spec, &socket)?)?;
    // An old socket file of a process that was killed refuses connections.
    cluster.ready(CONTROLLER, || UnixStream::connect(&socket).context("no socket yet"))?;
    Ok(())
}

/// The command line of a topolvm-controller that serves on `socket`, in a directory that is made. A test may add to it,
/// for example for a second replica.
pub fn controller_command(cluster: &Cluster, spec: &TopolvmSpec, socket: &Path) -> Result<Command> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let mut command: Command = cluster.command(spec.programs.join(CONTROLLER));
    command.arg("--csi-socket").arg(socket);
    // A kubeconfig, unlike a pod, has no namespace of its own
    command.arg(format!("--leader-election-namespace={NAMESPACE}")).args(&spec.controller_arguments);
    command.env("KUBECONFIG", cluster.directory().join("topolvm-controller.kubeconfig")).envs(spec.environment());
    Ok(command)
}

/// Ends what [`start_node_programs`] started.
pub fn stop_node_programs(node: &Node, spec: &TopolvmSpec) -> Result<()> {
    node.stop_kept(NODE)?;
    if spec.embed_lvmd { Ok(()) } else { node.stop_kept(LVMD) }
}

/// Starts lvmd and topolvm-node in a node, kept running as systemd and kubelet would, and after a restart of the node.
pub fn start_node_programs(cluster: &Cluster, node: &Node, spec: &TopolvmSpec) -> Result<()> {
    if !spec.node_script.is_empty() {
        node.script(&spec.node_script).context("the script that prepares the node failed")?;
    }
    node.script_with_input(&format!("cat >{LVMD_CONFIG}; sync {LVMD_CONFIG}"), spec.lvmd_config.as_bytes())?;
    if !spec.embed_lvmd {
        // The default address is topolvm-node's, which has the node's network too.
        let program = spec.programs.join(LVMD).to_string_lossy().into_owned();
        node.spawn_kept(LVMD, [program.as_str(), "--metrics-bind-address=127.0.0.1:8082"], &BTreeMap::new())?;
    }
    start_agent(cluster, node, spec)
}

/// Starts topolvm-node alone; also after a test has stopped it with [`Node::stop_kept`].
pub fn start_agent(cluster: &Cluster, node: &Node, spec: &TopolvmSpec) -> Result<()> {
    // The node sees its directory as /run/node.
    write_account_kubeconfig(cluster, NODE, Some(node.name()), &node.directory().join("topolvm-node.kubeconfig"))?;
    let mut env = BTreeMap::from([("KUBECONFIG".to_owned(), "/run/node/topolvm-node.kubeconfig".to_owned())]);
    env.extend(spec.environment());
    let program = spec.programs.join(NODE).to_string_lossy().into_owned();
    let arguments = [program, format!("--nodename={}", node.name())].into_iter();
    let socket = node_socket(spec.flavor);
    let lvmd = if spec.embed_lvmd {
        vec!["--embed-lvmd".to_owned(), format!("--config={LVMD_CONFIG}")]
    } else {
        vec![format!("--lvmd-socket={LVMD_SOCKET}")]
    };
    let arguments = arguments.chain(lvmd).chain([format!("--csi-socket={socket}")]);
    node.spawn_kept(NODE, arguments.chain(spec.node_arguments.iter().cloned()), &env)
}

/// The socket of the CSI node service in a node.
pub fn node_socket(flavor: ApiFlavor) -> String {
    format!("/var/lib/kubelet/plugins/{}/node/csi-topolvm.sock", flavor.driver_name())
}

/// Waits until kubelet has registered the driver, which is when the Node has its topology label too.
pub fn wait_for_driver(cluster: &Cluster, node: &Node, flavor: ApiFlavor) -> Result<()> {
    let driver = flavor.driver_name();
    let end = Instant::now() + START_LIMIT;
    let path = format!("/apis/storage.k8s.io/v1/csinodes/{}", node.name());
    loop {
        // kubelet makes the CSINode some time after the Node.
        let csi_node: Result<CSINode> = cluster.get(&path);
        if csi_node.as_ref().is_ok_and(|node| node.spec.drivers.iter().any(|registered| registered.name == driver)) {
            return Ok(());
        }
        if Instant::now() >= end {
            let logs = [NODE, LVMD].map(|name| log::tail(&node.log(name), 15)).join("\n");
            bail!("kubelet of {} has not registered {driver} after {START_LIMIT:?}: {logs}", node.name());
        }
        sleep(LOOK_AGAIN);
    }
}

/// A kubeconfig with a token of a ServiceAccount, so that a right that the manifests forget is missing here too. A
/// token for a node says so, as the token of a pod does.
pub fn write_account_kubeconfig(cluster: &Cluster, account: &str, node: Option<&str>, path: &Path) -> Result<()> {
    let token = account_token(cluster, account, node)?;
    cluster.write_kubeconfig(path, &Credential::Token(&token))
}

/// Such a token.
pub fn account_token(cluster: &Cluster, account: &str, node: Option<&str>) -> Result<String> {
    let mut arguments = vec!["create", "token", account, "--namespace", NAMESPACE, "--duration=24h"];
    if let Some(node) = node {
        arguments.extend(["--bound-object-kind=Node", "--bound-object-name", node]);
    }
    Ok(cluster.kubectl_ok(arguments)?.trim().to_owned())
}

/// Where cargo puts the programs of a workspace: beside this program, or above it when this is a test.
fn built_programs() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find this program's file")?;
    let mut directory = program.parent().context("this program is in no directory")?;
    if directory.ends_with("deps") {
        directory = directory.parent().context("this program is in no directory")?;
    }
    Ok(directory.to_owned())
}

/// The manifests that users apply, in the repository that this was built from.
pub fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/manifests")
}
