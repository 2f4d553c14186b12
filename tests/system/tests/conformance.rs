//! Runs csi-sanity against our sockets: a node with real LVM, and a controller on that node, because unix sockets do
//! not work across guests.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the list of what the suite skips is for a person")]

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use system_tests::sanity::{self, AccessType, Plugin};
use system_tests::shared::{ClusterPool, TestCluster};
use testbed::assets;
use testbed::suite::{self, InSoak};
use testbed::topolvm::{self, TopolvmSpec};
use topolvm_api::ApiFlavor;

/// A kind of volumes with its controller, and the csi-sanity specs that run and are skipped.
#[derive(Clone, Copy)]
struct Kind {
    /// Path of the socket of a controller that announces the capabilities of these volumes.
    socket: &'static str,
    /// Process name of that controller.
    controller: &'static str,
    /// Flags of that controller.
    flags: &'static [&'static str],
    /// Parameters of the StorageClass.
    parameters: &'static [(&'static str, &'static str)],
    /// Number of the 103 specs that run.
    specs: usize,
    /// Reasons why the other specs are skipped.
    skipped: &'static [Skipped],
}

/// Messages with which the suite skips specs, and the number of specs with each.
type Skipped = &'static [(&'static str, usize)];

/// Specs of attaching, which node-local volumes do not need.
const ATTACHING: Skipped = &[
    ("ControllerPublishVolume not supported", 7),
    ("ControllerUnpublishVolume not supported", 1),
    ("Controller Publish, UnpublishVolume not supported", 2),
];
const PENDING: Skipped = &[(sanity::PENDING, 1)];
/// Specs of snapshots and clones, which thick volumes do not have.
const COPIES: Skipped = &[
    ("CreateSnapshot not supported", 6),
    ("DeleteSnapshot not supported", 3),
    ("GetSnapshot not supported", 3),
    ("ListSnapshots not supported", 7),
    ("Snapshot not supported", 2),
    ("Volume Cloning not supported", 2),
];
const STAGING: Skipped = &[("NodeStageVolume not supported", 3), ("NodeUnstageVolume not supported", 2)];

/// Tests that only the soak runs. The others cover each kind of volumes, each access type, and agents with and without
/// staging.
const IN_SOAK: InSoak = InSoak {
    only: &[
        "thick_filesystem_volumes_conform_to_csi",
        "thin_block_volumes_conform_to_csi",
        "thick_filesystem_volumes_with_embedded_lvmd_conform_to_csi",
    ],
    also: &[],
};

const THICK: Kind = Kind {
    socket: "/run/topolvm/thick.sock",
    controller: "sanity-thick",
    flags: &["--enable-snapshots=false"],
    parameters: &[],
    specs: 69,
    skipped: &[ATTACHING, PENDING, COPIES],
};

/// Thick volumes with the agent's default flags: published at once, without staging.
const THICK_UNSTAGED: Kind = Kind { specs: 64, skipped: &[ATTACHING, PENDING, COPIES, STAGING], ..THICK };

/// Thin volumes, which support all capabilities of the controller.
const THIN: Kind = Kind {
    socket: "/run/topolvm/thin.sock",
    controller: "sanity-thin",
    flags: &[],
    parameters: &[("topolvm.io/device-class", topolvm::THIN_CLASS)],
    specs: 92,
    skipped: &[ATTACHING, PENDING],
};

/// Thin volumes with the agent's default flags: published at once, without staging.
const THIN_UNSTAGED: Kind = Kind { specs: 87, skipped: &[ATTACHING, PENDING, STAGING], ..THIN };

/// All tests share a cluster; the first starts it.
static SHARED: ClusterPool<TestCluster> = ClusterPool::new(1);

fn main() -> ExitCode {
    let test = |name: &str, kind: Kind, access| {
        suite::test(name, move || SHARED.run_with(up, |setup| run(setup, kind, access)))
    };
    let code = suite::on_host(IN_SOAK.select(vec![
        test("thick_filesystem_volumes_conform_to_csi", THICK, AccessType::Mount),
        test("thick_block_volumes_conform_to_csi", THICK, AccessType::Block),
        test("thin_filesystem_volumes_conform_to_csi", THIN, AccessType::Mount),
        test("thin_block_volumes_conform_to_csi", THIN, AccessType::Block),
        suite::test("thin_volumes_of_an_agent_with_default_flags_conform_to_csi", || SHARED.run_with(up, run_unstaged)),
        suite::test("thick_filesystem_volumes_with_embedded_lvmd_conform_to_csi", || {
            SHARED.run_with(up, run_with_embedded_lvmd)
        }),
    ]));
    if let Err(error) = SHARED.stop_idle(TestCluster::down) {
        eprintln!("conformance: taking the cluster down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}

fn run(setup: &TestCluster, kind: Kind, access: AccessType) -> Result<()> {
    let node = setup.node()?;
    let program = assets::csi_sanity()?;
    let plugin = Plugin {
        program: program.to_str().context("the cache's path is not UTF-8")?,
        node_socket: &topolvm::node_socket(ApiFlavor::TopoLvm),
        controller_socket: kind.socket,
        parameters: kind.parameters,
    };
    let report = sanity::run(node, &plugin, access)?;
    println!("{} {access:?}: {report}", kind.controller);
    ensure!(report.failed.is_empty(), "{report}");
    // Another number means that a capability is lost, or missing here
    ensure!(report.passed.len() == kind.specs, "{} specs ran, not {}:\n{report}", report.passed.len(), kind.specs);
    let mut skipped = BTreeMap::new();
    report.skipped.iter().for_each(|(_, reason)| *skipped.entry(reason.as_str()).or_insert(0) += 1);
    let expected: BTreeMap<&str, usize> = kind.skipped.iter().copied().flatten().copied().collect();
    ensure!(skipped == expected, "specs were skipped for these reasons: {skipped:?}, and not: {expected:?}\n{report}");
    let (vg, pool) = (topolvm::THIN_VG, topolvm::THIN_POOL);
    let left = node.script(&format!(
        "{{ lvs --noheadings -o lv_name myvg1 {vg} | grep -vw {pool}; ls /run/csi-sanity 2>/dev/null; \
         grep csi-sanity /proc/mounts; }} || true"
    ))?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    Ok(())
}

/// Runs the suite with lvmd embedded in the agent of the node, with the agent's default flags, and restores the usual
/// programs.
fn run_with_embedded_lvmd(setup: &TestCluster) -> Result<()> {
    let together = TopolvmSpec { embed_lvmd: true, node_arguments: Vec::new(), ..spec()? };
    run_with_programs(setup, &together, "the embedded lvmd is ready", || run(setup, THICK_UNSTAGED, AccessType::Mount))
}

/// Runs the suite for a filesystem and for a device with the agent's default flags.
fn run_unstaged(setup: &TestCluster) -> Result<()> {
    let by_default = TopolvmSpec { node_arguments: Vec::new(), ..spec()? };
    run_with_programs(setup, &by_default, LVMD_ANSWERS, || {
        run(setup, THIN_UNSTAGED, AccessType::Mount).and_then(|()| run(setup, THIN_UNSTAGED, AccessType::Block))
    })
}

/// Runs `body` with the programs of another specification, after their agent has logged `message`, and restores the
/// usual ones.
fn run_with_programs(
    setup: &TestCluster,
    other: &TopolvmSpec,
    message: &str,
    body: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let usual = spec()?;
    replace_programs(setup, &usual, other, message)?;
    let done = body();
    replace_programs(setup, other, &usual, LVMD_ANSWERS)?;
    done
}

/// Message that an agent logs when it can use a separate lvmd.
const LVMD_ANSWERS: &str = "lvmd answers";

/// Stops the programs of the node and starts others. Waits until their agent has logged `message`.
fn replace_programs(setup: &TestCluster, from: &TopolvmSpec, to: &TopolvmSpec, message: &str) -> Result<()> {
    let node = setup.node()?;
    topolvm::stop_node_programs(node, from)?;
    let log = format!("/run/node/{}.log", topolvm::NODE);
    let said = format!("grep -c '\"message\":\"{message}\"' {log} || true");
    let before = node.script(&said)?;
    topolvm::start_node_programs(&setup.cluster, node, to)?;
    let again = format!("until [ \"$({said})\" != {} ]; do sleep 0.05; done", before.trim());
    let again = format!("timeout 30 sh -c '{}'", again.replace('\'', "'\\''"));
    node.script(&again).context("the agent does not work").map(drop)
}

/// Returns the specification of the node. Volumes are staged, since more specs run then.
fn spec() -> Result<TopolvmSpec> {
    let node_arguments = vec!["--stage-volumes".to_owned()];
    Ok(TopolvmSpec { node_arguments, ..TopolvmSpec::nodes(1)?.with_thin_class() })
}

fn up() -> Result<TestCluster> {
    let spec = spec()?;
    let setup = TestCluster::up("sanity", &spec)?;
    // The controllers refuse volumes until the agent has published the free space of its node
    setup.cluster.ready("apiserver", || {
        let capacity =
            setup.value("node", setup.node()?.name(), r".metadata.annotations.capacity\.topolvm\.io/00default")?;
        ensure!(!capacity.is_empty(), "the node has published no capacity");
        Ok(())
    })?;
    [THICK, THIN].iter().try_for_each(|kind| start_controller_in_node(&setup, &spec, kind))?;
    Ok(setup)
}

/// Starts a further controller in the node; several at once are a supported deployment.
fn start_controller_in_node(setup: &TestCluster, spec: &TopolvmSpec, kind: &Kind) -> Result<()> {
    let node = setup.node()?;
    let kubeconfig = "topolvm-controller.kubeconfig";
    fs::copy(setup.cluster.directory().join(kubeconfig), node.directory().join(kubeconfig))?;
    let program = spec.programs.join(topolvm::CONTROLLER);
    let program = program.to_str().context("the path of the programs is not UTF-8")?;
    let socket = kind.socket;
    let arguments = [program, "--csi-socket", socket, "--metrics-bind-address=", "--health-probe-bind-address="];
    let env = BTreeMap::from([("KUBECONFIG".to_owned(), format!("/run/node/{kubeconfig}"))]);
    node.spawn_kept(kind.controller, arguments.iter().chain(kind.flags).copied(), &env)?;
    node.script(&format!("timeout 30 sh -c 'until [ -S {socket} ]; do sleep 0.05; done'"))
        .context("the controller in the node does not start")
        .map(drop)
}
