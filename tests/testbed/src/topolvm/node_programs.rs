//! lvmd and topolvm-node as processes of a node.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::storage::v1::CSINode;
use topolvm_api::ApiFlavor;

use super::kustomization::write_account_kubeconfig;
use super::spec::TopolvmSpec;
use crate::cluster::Cluster;
use crate::log;
use crate::node::Node;

/// Name of topolvm-node's process, and of its log: see [`Node::log`].
pub const NODE: &str = "topolvm-node";
/// Name of lvmd's process, and of its log: see [`Node::log`].
pub const LVMD: &str = "lvmd";
/// Path of lvmd's socket in a node.
pub const LVMD_SOCKET: &str = "/run/topolvm/lvmd.sock";

const LVMD_CONFIG: &str = "/etc/topolvm/lvmd.yaml";
/// Time that kubelet has to register the driver.
const START_TIMEOUT: Duration = Duration::from_mins(3);
/// Interval of the checks that kubelet has registered the driver.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the shell script of the specification in a node, if there is one.
pub(super) fn run_node_script(node: &Node, spec: &TopolvmSpec) -> Result<()> {
    if !spec.node_script.is_empty() {
        node.script(&spec.node_script).context("the script that prepares the node failed")?;
    }
    Ok(())
}

/// Stops the programs that [`start_node_programs`] started.
pub fn stop_node_programs(node: &Node, spec: &TopolvmSpec) -> Result<()> {
    node.stop_kept(NODE)?;
    if spec.embed_lvmd { Ok(()) } else { node.stop_kept(LVMD) }
}

/// Starts lvmd and topolvm-node in a node, which restarts them as systemd and kubelet would, also after a reboot.
pub fn start_node_programs(cluster: &Cluster, node: &Node, spec: &TopolvmSpec) -> Result<()> {
    run_node_script(node, spec)?;
    node.script_with_input(&format!("cat >{LVMD_CONFIG}; sync {LVMD_CONFIG}"), spec.lvmd_config.as_bytes())?;
    if !spec.embed_lvmd {
        // The default address is topolvm-node's, which has the node's network too.
        let program = spec.programs.join(LVMD).to_string_lossy().into_owned();
        node.spawn_kept(LVMD, [program.as_str(), "--metrics-bind-address=127.0.0.1:8082"], &BTreeMap::new())?;
    }
    start_agent(cluster, node, spec)
}

/// Starts only topolvm-node; also after a test has stopped it with [`Node::stop_kept`].
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

/// Returns the path of the socket of the CSI node service in a node.
pub fn node_socket(flavor: ApiFlavor) -> String {
    format!("/var/lib/kubelet/plugins/{}/node/csi-topolvm.sock", flavor.driver_name())
}

/// Waits until kubelet has registered the driver, which is when the Node has its topology label too.
pub fn wait_for_driver(cluster: &Cluster, node: &Node, flavor: ApiFlavor) -> Result<()> {
    let driver = flavor.driver_name();
    let end = Instant::now() + START_TIMEOUT;
    let path = format!("/apis/storage.k8s.io/v1/csinodes/{}", node.name());
    loop {
        // kubelet creates the CSINode some time after the Node.
        let csi_node: Result<CSINode> = cluster.get(&path);
        if csi_node.as_ref().is_ok_and(|node| node.spec.drivers.iter().any(|registered| registered.name == driver)) {
            return Ok(());
        }
        if Instant::now() >= end {
            let logs = [NODE, LVMD].map(|name| log::tail(&node.log(name), 15)).join("\n");
            bail!("kubelet of {} has not registered {driver} after {START_TIMEOUT:?}: {logs}", node.name());
        }
        sleep(POLL_INTERVAL);
    }
}
