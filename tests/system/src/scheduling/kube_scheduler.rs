//! kube-scheduler of the test cluster with the configurations that ship.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::cluster::{Cluster, SCHEDULER_PROCESS};
use testbed::topolvm::manifests;

/// Restarts kube-scheduler of the test cluster with a configuration that ships, with the kubeconfig of the cluster, and
/// with the changes of `edit`.
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

/// Restarts kube-scheduler as the test bed does, without a configuration that ships.
pub fn restart_without_extender(cluster: &Cluster) -> Result<()> {
    cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
    cluster.spawn(SCHEDULER_PROCESS, &cluster.scheduler_command())
}

/// Returns the path of a file in `scheduler-config`.
pub(super) fn scheduler_config(file: &str) -> PathBuf {
    manifests().join("../../scheduler-config").join(file)
}
