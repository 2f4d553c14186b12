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

const CONTROLLER_SOCKET: &str = "/run/topolvm/controller.sock";

/// Both trials share a cluster; the first starts it.
static SHARED: Mutex<Option<(Topolvm, tempfile::TempDir)>> = Mutex::new(None);

fn main() -> ExitCode {
    let trial = |name: &str, access| Trial::test(name, move || run(access).map_err(|e| Failed::from(format!("{e:#}"))));
    let code = testbed::suite::on_host(vec![
        trial("thick_filesystem_volumes_conform_to_csi", AccessType::Mount),
        trial("thick_block_volumes_conform_to_csi", AccessType::Block),
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

fn run(access: AccessType) -> Result<()> {
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
        controller_socket: CONTROLLER_SOCKET,
    };
    let report = sanity::run(node, &plugin, access)?;
    println!("{access:?}: {report}");
    ensure!(report.failed.is_empty(), "{report}");
    // What runs without snapshots and listing; fewer would mean that a capability got lost
    ensure!(report.passed.len() >= 38, "only {} specs ran:\n{report}", report.passed.len());
    let left = node.script("lvs --noheadings -o lv_name myvg1; ls /run/csi-sanity 2>/dev/null || true; grep csi-sanity /proc/mounts || true")?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    Ok(())
}

fn up() -> Result<(Topolvm, tempfile::TempDir)> {
    let directory = tempfile::Builder::new().prefix("topolvm-sanity-").tempdir_in("/var/tmp")?;
    let topolvm = topolvm::up(&directory.path().join("c"), 1)?;
    start_controller_in_node(&topolvm)?;
    Ok((topolvm, directory))
}

/// A second controller; two at once are a supported deployment.
fn start_controller_in_node(topolvm: &Topolvm) -> Result<()> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let kubeconfig = "topolvm-controller.kubeconfig";
    fs::copy(topolvm.cluster.directory().join(kubeconfig), node.directory().join(kubeconfig))?;
    let program = TopolvmSpec::nodes(1)?.programs.join(topolvm::CONTROLLER);
    let program = program.to_str().context("the path of the programs is not UTF-8")?;
    let arguments =
        [program, "--csi-socket", CONTROLLER_SOCKET, "--metrics-bind-address=", "--health-probe-bind-address="];
    let env = BTreeMap::from([("KUBECONFIG".to_owned(), format!("/run/node/{kubeconfig}"))]);
    node.spawn_kept("sanity-controller", arguments, &env)?;
    node.script(&format!("timeout 30 sh -c 'until [ -S {CONTROLLER_SOCKET} ]; do sleep 0.05; done'"))
        .context("the controller in the node does not start")
        .map(drop)
}
