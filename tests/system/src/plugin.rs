//! Runs the kubectl plugin as its users do: kubectl finds it on the search path.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::topolvm::TopolvmSpec;

/// Outcome of a run of the plugin.
#[derive(Debug)]
pub struct Answer {
    /// True if the exit status is 0.
    pub is_success: bool,
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub errors: String,
}

/// Returns the command `kubectl topolvm` with a kubeconfig, without arguments.
pub fn command(cluster: &Cluster, kubeconfig: &Path) -> Result<Command> {
    let programs = TopolvmSpec::nodes(0)?.programs;
    let path = programs.to_str().context("the path of the programs is not UTF-8")?;
    ensure!(programs.join("kubectl-topolvm").is_file(), "no kubectl-topolvm: run cargo build --workspace --bins first");
    let kubectl = cluster.tool("kubectl");
    // The plugin runs kubectl in its turn
    let tools = kubectl.parent().and_then(Path::to_str).context("the path of kubectl is not UTF-8")?.to_owned();
    let mut command = cluster.command(kubectl);
    command.arg("topolvm").stdin(Stdio::null());
    command.env("KUBECONFIG", kubeconfig).env("PATH", format!("{path}:{tools}:/usr/sbin:/usr/bin:/sbin:/bin"));
    Ok(command)
}

/// Runs `kubectl topolvm` with these arguments and a kubeconfig.
pub fn run(cluster: &Cluster, kubeconfig: &Path, arguments: &[&str]) -> Result<Answer> {
    let output = command(cluster, kubeconfig)?.args(arguments).output().context("run kubectl topolvm")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer { is_success: output.status.success(), text: text(&output.stdout), errors: text(&output.stderr) })
}

/// Runs the plugin as an administrator with `-o json` and parses its output, whatever the exit status.
pub fn json(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let arguments: Vec<_> = arguments.iter().copied().chain(["-o", "json"]).collect();
    let answer = run(cluster, &cluster.inner_kubeconfig(), &arguments)?;
    serde_json::from_str(&answer.text).with_context(|| format!("kubectl topolvm prints no JSON: {answer:?}"))
}
