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

/// Returns the search path on which kubectl and the plugin are.
pub fn search_path(cluster: &Cluster) -> Result<String> {
    let programs = TopolvmSpec::nodes(0)?.programs;
    let path = programs.to_str().context("the path of the programs is not UTF-8")?;
    ensure!(programs.join("kubectl-topolvm").is_file(), "no kubectl-topolvm: run cargo build --workspace --bins first");
    // The plugin runs kubectl in its turn
    let kubectl = cluster.tool("kubectl");
    let tools = kubectl.parent().and_then(Path::to_str).context("the path of kubectl is not UTF-8")?;
    Ok(format!("{path}:{tools}:/usr/sbin:/usr/bin:/sbin:/bin"))
}

/// Returns the command `kubectl topolvm` with a kubeconfig, without arguments.
pub fn command(cluster: &Cluster, kubeconfig: &Path) -> Result<Command> {
    let mut command = cluster.command(cluster.tool("kubectl"));
    command.arg("topolvm").stdin(Stdio::null());
    command.env("KUBECONFIG", kubeconfig).env("PATH", search_path(cluster)?);
    Ok(command)
}

/// Returns a shell that runs a script as the administrator of a cluster, with kubectl and the plugin on the search
/// path.
pub fn shell(cluster: &Cluster, script: &str) -> Result<Command> {
    let mut command = cluster.command("sh");
    command.args(["-euc", script]).stdin(Stdio::null());
    command.env("KUBECONFIG", cluster.inner_kubeconfig()).env("PATH", search_path(cluster)?);
    Ok(command)
}

/// Has a shell run a line, as an administrator who copies the output of the plugin.
pub fn run_line(cluster: &Cluster, line: &str) -> Result<()> {
    let output = shell(cluster, line)?.output().context("run sh")?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Runs `kubectl topolvm` with these arguments and a kubeconfig.
pub fn run(cluster: &Cluster, kubeconfig: &Path, arguments: &[&str]) -> Result<Answer> {
    let output = command(cluster, kubeconfig)?.args(arguments).output().context("run kubectl topolvm")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer { is_success: output.status.success(), text: text(&output.stdout), errors: text(&output.stderr) })
}

/// Runs `kubectl topolvm` as administrator; a failure is an error with its output.
pub fn run_successfully(cluster: &Cluster, arguments: &[&str]) -> Result<Answer> {
    let answer = run(cluster, &cluster.inner_kubeconfig(), arguments)?;
    ensure!(answer.is_success, "{arguments:?}: {answer:?}");
    Ok(answer)
}

/// Runs the commands that `doctor` prints, as they are and in their order, and returns them.
pub fn run_printed_commands(cluster: &Cluster) -> Result<Vec<String>> {
    let report = run(cluster, &cluster.inner_kubeconfig(), &["doctor"])?;
    ensure!(!report.is_success, "{report:?}");
    let printed = report.text.lines().filter_map(|line| line.trim().strip_prefix("run: "));
    let commands: Vec<_> = printed.map(str::to_owned).collect();
    commands.iter().try_for_each(|command| run_line(cluster, command))?;
    Ok(commands)
}

/// Runs the plugin as an administrator with `-o json` and parses its output, with any exit status.
pub fn json(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let arguments: Vec<_> = arguments.iter().copied().chain(["-o", "json"]).collect();
    let answer = run(cluster, &cluster.inner_kubeconfig(), &arguments)?;
    serde_json::from_str(&answer.text).with_context(|| format!("kubectl topolvm prints no JSON: {answer:?}"))
}

/// Waits until a check of `doctor` finds each of these: parts of the finding, and of its remedy or a command.
pub fn wait_for_findings(cluster: &Cluster, check: &str, expected: &[(&str, &str)]) -> Result<()> {
    cluster.ready("apiserver", || {
        let checked = run_check(cluster, check)?;
        let findings = checked.get("findings").and_then(Value::as_array).into_iter().flatten();
        let findings: Vec<_> = findings.collect();
        for (words, remedy) in expected {
            let is_expected = |finding: &&Value| {
                let text = |said: &Value| said.as_str().map_or_else(|| said.to_string(), str::to_owned);
                let says = |key: &str, words: &str| finding.get(key).is_some_and(|said| text(said).contains(words));
                says("found", words) && (says("remedy", remedy) || says("commands", remedy))
            };
            let is_found = findings.iter().any(is_expected);
            ensure!(is_found, "{check} does not say {words:?} with {remedy:?}: {findings:#?}");
        }
        Ok(())
    })
}

/// Waits until a check of `doctor` finds nothing.
pub fn wait_until_ok(cluster: &Cluster, check: &str) -> Result<()> {
    cluster.ready("apiserver", || {
        let checked = run_check(cluster, check)?;
        ensure!(checked.get("result").is_some_and(|result| result == "ok"), "doctor says: {checked:#}");
        Ok(())
    })
}

/// Runs `doctor` and returns the result of one of its checks.
fn run_check(cluster: &Cluster, name: &str) -> Result<Value> {
    let report = json(cluster, &["doctor"])?;
    let mut checks = report.get("checks").and_then(Value::as_array).into_iter().flatten();
    let check = checks.find(|check| check.get("name").is_some_and(|found| found == name));
    check.cloned().with_context(|| format!("doctor has no check {name}"))
}
