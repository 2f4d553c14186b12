//! The Helm chart, and the helm programs that render and install it.
#![expect(clippy::disallowed_methods, reason = "starts helm, and is no part of the product")]

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use testbed::assets;
pub use testbed::assets::Helm;
use testbed::cluster::Cluster;
use testbed::suite;
use testbed::topolvm;

/// Returns the directory of the chart.
pub fn directory() -> PathBuf {
    topolvm::manifests().join("../../charts/topolvm")
}

/// Returns the path of a set of values in the directory `ci` of the chart: that of `NAME-values.yaml`.
pub fn values(name: &str) -> PathBuf {
    directory().join(format!("ci/{name}-values.yaml"))
}

/// Returns the version of helm that this run tests: the newest, in a soak the one before.
pub fn version() -> Helm {
    if suite::is_soak() { Helm::Three } else { Helm::Four }
}

/// Returns the path of the helm program.
pub fn program() -> Result<PathBuf> {
    assets::helm(version())
}

/// Runs helm with these arguments, for a release in a namespace of a cluster. Returns the standard output, or an error
/// with all output.
pub fn run(cluster: &Cluster, namespace: &str, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.command(program()?);
    command.arg("--kubeconfig").arg(cluster.inner_kubeconfig()).args(["--namespace", namespace]).args(arguments);
    run_command(&mut command)
}

/// Directories that the chart mounts for an LVM in the container.
pub const LVM_MOUNTS: [&str; 5] =
    ["/run/lock/lvm", "/run/lvm", "/etc/lvm/archive", "/etc/lvm/backup", "/etc/lvm/cache"];

/// Runs `helm template` with these arguments, for a release of this name in a namespace. Returns the standard output,
/// or an error with all output.
pub fn render(release: &str, namespace: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program()?);
    command.args(["template", release]).arg(directory()).args(["--namespace", namespace]).args(arguments);
    run_command(&mut command)
}

/// Runs a command. Returns its standard output, or an error with all output if it fails.
pub fn run_command(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let [said, complaint] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(output.status.success(), "{command:?}: {said}{complaint}");
    Ok(said)
}
