//! The product's manifests on a cluster: kustomizations, their roll-out, and tokens of their ServiceAccounts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::failure::WithState as _;
use crate::kubeconfig::Credential;
use crate::sidecars::NAMESPACE;

/// Returns the directory of the manifests that users apply, in the repository that this was built from.
pub fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/manifests")
}

/// Applies a kustomization with its workloads, and waits until the roll-out of all of the product's pods is complete.
pub fn roll_out(cluster: &Cluster, manifests: &Path) -> Result<()> {
    apply_manifests(cluster, manifests, |_| true)?;
    let rolled_out = |workload: &str| {
        let waiting = ["rollout", "status", "--namespace", NAMESPACE, "--timeout=180s", workload];
        cluster.kubectl_ok(waiting).map(drop)
    };
    let workloads = cluster.kubectl_ok(["get", "--namespace", NAMESPACE, "deployments,daemonsets", "-o", "name"])?;
    let pods = || {
        let pods = cluster.kubectl_ok(["describe", "pods", "--namespace", NAMESPACE]).unwrap_or_default();
        let log = ["logs", "--namespace", NAMESPACE, "--all-containers", "--prefix", "--tail=20"];
        let selected = ["--selector=app.kubernetes.io/name=topolvm", "--max-log-requests=40"];
        pods + &cluster.kubectl_ok(log.into_iter().chain(selected)).unwrap_or_default()
    };
    workloads.lines().try_for_each(rolled_out).with_state(pods)
}

/// Applies a kustomization without its workloads, as for programs that are processes of the test bed.
pub fn apply_without_workloads(cluster: &Cluster, manifests: &Path) -> Result<()> {
    apply_manifests(cluster, manifests, |object| !is_workload(object))
}

/// Applies the objects of a kustomization that `is_wanted` selects by their YAML.
fn apply_manifests(cluster: &Cluster, directory: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    let all = cluster.kubectl_ok([Path::new("kustomize"), directory])?;
    let wanted: Vec<&str> = all.split("\n---\n").filter(|object| is_wanted(object)).collect();
    let file = cluster.directory().join("manifests.yaml");
    fs::write(&file, wanted.join("\n---\n")).with_context(|| format!("write {}", file.display()))?;
    let apply = ["apply", "--server-side", "--force-conflicts", "-f"];
    cluster.kubectl_ok(apply.iter().map(Path::new).chain([file.as_path()])).map(drop)
}

/// Returns true for an object in YAML that creates pods.
fn is_workload(object: &str) -> bool {
    object.lines().any(|line| ["kind: Deployment", "kind: DaemonSet", "kind: PodDisruptionBudget"].contains(&line))
}

/// Writes a kubeconfig with a token of a ServiceAccount, so that permissions missing from the manifests are missing
/// here too.
pub(super) fn write_account_kubeconfig(
    cluster: &Cluster,
    account: &str,
    node: Option<&str>,
    path: &Path,
) -> Result<()> {
    let token = account_token(cluster, account, node)?;
    cluster.write_kubeconfig(path, &Credential::Token(&token))
}

/// Creates a token of a ServiceAccount. One for a node is bound to it, as the token of a pod is.
pub fn account_token(cluster: &Cluster, account: &str, node: Option<&str>) -> Result<String> {
    let mut arguments = vec!["create", "token", account, "--namespace", NAMESPACE, "--duration=24h"];
    if let Some(node) = node {
        arguments.extend(["--bound-object-kind=Node", "--bound-object-name", node]);
    }
    Ok(cluster.kubectl_ok(arguments)?.trim().to_owned())
}
