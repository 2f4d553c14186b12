//! kube-scheduler in a node with a configuration that ships, as kubeadm runs it, next to the pods of the extender.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, pod};
use system_tests::shared::TestCluster;
use testbed::cluster::SCHEDULER_PROCESS;
use testbed::node::Node;
use testbed::topolvm::manifests;

/// Name of the process in the node.
pub(crate) const NAME: &str = "kube-scheduler";
/// Path of its kubeconfig in the configurations that ship.
const KUBECONFIG: &str = "/etc/kubernetes/scheduler.conf";

/// Stops the kube-scheduler of the test bed and starts one in the node.
pub(crate) fn move_to(shared: &TestCluster, node: &Node, config: &str) -> Result<()> {
    let credential = fs::read(shared.cluster.directory().join("scheduler.kubeconfig"))?;
    node.script_with_input(&format!("mkdir -p /etc/kubernetes && cat >{KUBECONFIG}"), &credential)?;
    shared.cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
    start(shared, node, config)
}

/// Starts kube-scheduler as kubeadm does, in the network of a host that has pods, with a shipped configuration as it
/// is.
pub(crate) fn start(shared: &TestCluster, node: &Node, config: &str) -> Result<()> {
    // The one before has not given it up, and it would be 15 s until another may take it
    shared.kubectl(&["delete", "lease", NAME, "-n", "kube-system", "--ignore-not-found"])?;
    let program = shared.cluster.tool(NAME).canonicalize()?;
    let config: PathBuf = manifests().join("../../scheduler-config").join(config).canonicalize()?;
    let arguments = [
        program.to_string_lossy().into_owned(),
        format!("--config={}", config.display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--authentication-kubeconfig={KUBECONFIG}"),
        format!("--authorization-kubeconfig={KUBECONFIG}"),
    ];
    node.spawn_kept(NAME, arguments, &BTreeMap::new())
}

/// Waits until kube-scheduler is proven to call the extender, so that pods get the resource.
pub(crate) fn wait_for_proof(shared: &TestCluster) -> Result<()> {
    let outcome = Commands::of("scheduling.md", "What the mode `extender` proves before pods depend on it")?;
    shared.cluster.ready("apiserver", || {
        let said = outcome.run(&shared.cluster)?;
        ensure!(said.contains(r#""extender-proven":"true""#), "the extender is not proven to be called: {said}");
        Ok(())
    })
}

/// Waits until the API server trusts the certificate that the controller has created.
pub(crate) fn wait_for_webhook(shared: &TestCluster) -> Result<()> {
    let pod = pod("webhook", "nothing", VolumeMode::Filesystem);
    let file = shared.cluster.directory().join("tried.json");
    fs::write(&file, pod.to_string())?;
    let file = file.to_string_lossy().into_owned();
    shared.cluster.ready("apiserver", || shared.kubectl(&["create", "--dry-run=server", "-f", &file]).map(drop))
}
