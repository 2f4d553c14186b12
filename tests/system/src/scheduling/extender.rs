//! topolvm-scheduler as a process next to kube-scheduler of the test cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use testbed::cluster::Cluster;
use testbed::topolvm::manifests;

use super::kube_scheduler::{restart_kube_scheduler, restart_without_extender, scheduler_config};

/// Program of the extender, and name of its process.
pub const EXTENDER: &str = "topolvm-scheduler";

/// Returns the path of the configuration that the overlays give to the extender.
pub fn options_of_overlays() -> PathBuf {
    manifests().join("components/scheduler-daemonset/scheduler-options.yaml")
}

/// Returns the path of the configuration for standalone extenders, which reserve nothing.
pub(super) fn options_without_reservations() -> PathBuf {
    scheduler_config("scheduler-options.yaml")
}

/// Starts the extender of a directory of programs with a configuration and a kubeconfig, and kube-scheduler again with
/// the configuration that ships.
pub fn start_extender(cluster: &Cluster, programs: &Path, options: &Path, kubeconfig: &Path) -> Result<()> {
    let mut extender = cluster.command(programs.join(EXTENDER));
    extender.arg("--config").arg(options).env("KUBECONFIG", kubeconfig);
    cluster.spawn(EXTENDER, &extender)?;
    cluster.ready(EXTENDER, || {
        let mut curl = cluster.command("curl");
        let status = curl.args(["-sf", "--max-time", "5", "http://127.0.0.1:9251/readyz"]).output()?.status;
        ensure!(status.success(), "the extender is not ready");
        Ok(())
    })?;
    restart_kube_scheduler(cluster, "scheduler-config.yaml", |config| config).context("start kube-scheduler again")
}

/// Restarts kube-scheduler as the test bed does, and then stops the extender.
pub fn stop_extender(cluster: &Cluster) -> Result<()> {
    restart_without_extender(cluster)?;
    cluster.stop(EXTENDER, Duration::ZERO)
}
