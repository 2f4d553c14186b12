//! kube-scheduler of the bed with the configurations that ship.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::cluster::{Cluster, SCHEDULER_PROCESS};
use testbed::topolvm::manifests;

/// Starts kube-scheduler of the bed again with a configuration that ships, with the kubeconfig of the bed, and as
/// `edit` changes it.
pub fn restart_kube_scheduler(cluster: &Cluster, file: &str, edit: impl FnOnce(String) -> String) -> Result<()> {
    let config = fs::read_to_string(scheduler_config(file)).context("read the shipped configuration")?;
    let kubeconfig = cluster.directory().join("scheduler.kubeconfig");
    let config = config
        .replace("/etc/kubernetes/scheduler.conf", &kubeconfig.to_string_lossy())
        .replace("leaderElect: true", "leaderElect: false");
    let path = cluster.directory().join("scheduler-with-extender.yaml");
    fs::write(&path, edit(config)).with_context(|| format!("write {}", path.display()))?;
    cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
    let mut scheduler = cluster.scheduler_command();
    scheduler.arg("--config").arg(&path);
    cluster.spawn(SCHEDULER_PROCESS, &scheduler)
}

/// Starts kube-scheduler of the bed again as the bed does, without a configuration that ships.
pub fn restart_without_extender(cluster: &Cluster) -> Result<()> {
    cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
    cluster.spawn(SCHEDULER_PROCESS, &cluster.scheduler_command())
}

/// Returns the path of a file in `scheduler-config`.
pub(super) fn scheduler_config(file: &str) -> PathBuf {
    manifests().join("../../scheduler-config").join(file)
}
