//! csi-sanity against our sockets: a node with real LVM, and a controller beside it, because unix sockets do not leave a guest.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the list of what the suite skips is for a person")]

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Failed, Trial};
use system_tests::sanity::{self, AccessType, Plugin};
use testbed::assets;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};

/// What the suite makes volumes of.
#[derive(Clone, Copy)]
struct Kind {
    /// Path of the socket of a controller that announces what these volumes can do.
    socket: &'static str,
    /// The name of that controller.
    controller: &'static str,
    /// Flags of that controller.
    flags: &'static [&'static str],
    /// Parameters of the StorageClass.
    parameters: &'static [(&'static str, &'static str)],
    /// So many specs run at least; fewer would mean that a capability got lost.
    specs: usize,
}

/// Thick volumes cannot be copied. What is missing beside that are attaching (10 specs), groups (6), staging (5: kubelet has us publish at
/// once), and one that is pending in the suite itself.
const THICK: Kind = Kind {
    socket: "/run/topolvm/thick.sock",
    controller: "sanity-thick",
    flags: &["--enable-snapshots=false"],
    parameters: &[],
    specs: 58,
};

/// Thin volumes can do everything that the controller can.
const THIN: Kind = Kind {
    socket: "/run/topolvm/thin.sock",
    controller: "sanity-thin",
    flags: &[],
    parameters: &[("topolvm.io/device-class", topolvm::THIN_CLASS)],
    specs: 81,
};

/// All trials share a cluster; the first starts it.
static SHARED: Mutex<Option<(Topolvm, tempfile::TempDir)>> = Mutex::new(None);

fn main() -> ExitCode {
    let trial = |name: &str, kind: Kind, access| {
        Trial::test(name, move || run(kind, access).map_err(|error| Failed::from(format!("{error:#}"))))
    };
    let code = testbed::suite::on_host(vec![
        trial("thick_filesystem_volumes_conform_to_csi", THICK, AccessType::Mount),
        trial("thick_block_volumes_conform_to_csi", THICK, AccessType::Block),
        trial("thin_filesystem_volumes_conform_to_csi", THIN, AccessType::Mount),
        trial("thin_block_volumes_conform_to_csi", THIN, AccessType::Block),
    ]);
    if let Ok(mut shared) = SHARED.lock()
        && let Some((topolvm, _directory)) = shared.take()
        && let Err(error) = topolvm.cluster.down(None)
    {
        eprintln!("conformance: taking the cluster down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}

fn run(kind: Kind, access: AccessType) -> Result<()> {
    let mut shared = SHARED.lock().map_err(|_| anyhow::anyhow!("an earlier trial panicked"))?;
    let topolvm = match &mut *shared {
        Some((topolvm, _)) => topolvm,
        none => &mut none.insert(up()?).0,
    };
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let program = assets::csi_sanity()?;
    let plugin = Plugin {
        program: program.to_str().context("the cache's path is not UTF-8")?,
        node_socket: topolvm::NODE_SOCKET,
        controller_socket: kind.socket,
        parameters: kind.parameters,
    };
    let report = sanity::run(node, &plugin, access)?;
    println!("{} {access:?}: {report}", kind.controller);
    ensure!(report.failed.is_empty(), "{report}");
    let ran = report.passed.len() + report.unsatisfiable.len();
    ensure!(ran >= kind.specs, "only {ran} specs ran:\n{report}");
    let (vg, pool) = (topolvm::THIN_VG, topolvm::THIN_POOL);
    let left = node.script(&format!(
        "{{ lvs --noheadings -o lv_name myvg1 {vg} | grep -vw {pool}; ls /run/csi-sanity 2>/dev/null; grep csi-sanity /proc/mounts; }} || true"
    ))?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    Ok(())
}

fn up() -> Result<(Topolvm, tempfile::TempDir)> {
    let directory = tempfile::Builder::new().prefix("topolvm-sanity-").tempdir_in("/var/tmp")?;
    let spec = TopolvmSpec::nodes(1)?.with_thin_class();
    let topolvm = topolvm::up_with(&directory.path().join("c"), &spec)?;
    [THICK, THIN].iter().try_for_each(|kind| start_controller_in_node(&topolvm, &spec, kind))?;
    Ok((topolvm, directory))
}

/// Further controllers; several at once are a supported deployment.
fn start_controller_in_node(topolvm: &Topolvm, spec: &TopolvmSpec, kind: &Kind) -> Result<()> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let kubeconfig = "topolvm-controller.kubeconfig";
    fs::copy(topolvm.cluster.directory().join(kubeconfig), node.directory().join(kubeconfig))?;
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
