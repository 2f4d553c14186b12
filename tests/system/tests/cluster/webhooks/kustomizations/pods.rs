//! Checks rules that the pods of every kustomization obey.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Objects;

/// User of unprivileged containers.
const USER: u32 = 65532;
/// Containers that need devices, mounts or namespaces of the host.
const PRIVILEGED: [&str; 2] = ["lvmd", "topolvm-node"];
/// Containers with a liveness probe, and the path of the probe. None of these calls LVM: a slow LVM is no reason for a
/// restart.
const LIVENESS: [(&str, &str); 2] = [("topolvm-controller", "/healthz"), ("topolvm-scheduler", "/status")];

impl Objects<'_> {
    pub(super) fn workloads(&self) -> impl Iterator<Item = &Value> {
        self.of_kind("Deployment").chain(self.of_kind("DaemonSet"))
    }

    pub(super) fn check_pods(&self) -> Result<()> {
        for workload in self.workloads() {
            let name = &workload["metadata"]["name"];
            self.check_update(workload).with_context(|| format!("the update of {name}"))?;
            check_pod(&workload["spec"]["template"]["spec"]).with_context(|| format!("the pods of {name}"))?;
        }
        Ok(())
    }

    /// Checks that an update never runs two agents at once, and that one of two replicas stays.
    fn check_update(&self, workload: &Value) -> Result<()> {
        let spec = &workload["spec"];
        if workload["kind"] == "DaemonSet" {
            let rolling = &spec["updateStrategy"]["rollingUpdate"];
            ensure!(*rolling == json!({"maxUnavailable": 1, "maxSurge": 0}), "{rolling}");
            return Ok(());
        }
        ensure!(spec["replicas"] == 2, "{} replicas", spec["replicas"]);
        let spread = &spec["template"]["spec"]["topologySpreadConstraints"][0];
        ensure!(spread["topologyKey"] == "kubernetes.io/hostname", "not spread: {spread}");
        ensure!(spread["labelSelector"] == spec["selector"], "the spread is of other pods: {spread}");
        let budgets: Vec<&Value> = self.of_kind("PodDisruptionBudget").map(|budget| &budget["spec"]).collect();
        let wanted = json!({"maxUnavailable": 1, "selector": spec["selector"]});
        ensure!(budgets.contains(&&wanted), "no such budget: {wanted}");
        Ok(())
    }
}

fn check_pod(pod: &Value) -> Result<()> {
    let priority = pod["priorityClassName"].as_str().unwrap_or_default();
    ensure!(["system-node-critical", "system-cluster-critical"].contains(&priority), "the priority is {priority:?}");
    for container in pod["containers"].as_array().context("no containers")? {
        let name = container["name"].as_str().context("no name")?;
        check_container(pod, container, name).with_context(|| format!("container {name}"))?;
    }
    Ok(())
}

fn check_container(pod: &Value, container: &Value, name: &str) -> Result<()> {
    ensure!(is_pinned(container["image"].as_str().unwrap_or_default()), "the image {}", container["image"]);
    for (kind, resource) in [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")] {
        ensure!(container["resources"][kind][resource].is_string(), "no {kind} of {resource}");
    }
    let (common, own) = (&pod["securityContext"], &container["securityContext"]);
    ensure!(own["readOnlyRootFilesystem"] == true, "the root file system can be written to");
    ensure!(PRIVILEGED.contains(&name) == (own["privileged"] == true), "privileged or not: {own}");
    if own["privileged"] != true {
        ensure!(common["runAsNonRoot"] == true && common["runAsUser"] == USER, "the user: {common}");
        ensure!(common["seccompProfile"] == json!({"type": "RuntimeDefault"}), "seccomp: {common}");
        ensure!(own["capabilities"] == json!({"drop": ["ALL"]}), "capabilities: {own}");
        ensure!(own["allowPrivilegeEscalation"] == false, "privileges can be gained: {own}");
    }
    if let Some(probe) = container.get("livenessProbe") {
        let path = probe["httpGet"]["path"].as_str().unwrap_or_default();
        ensure!(LIVENESS.contains(&(name, path)), "the liveness probe {probe}");
    }
    Ok(())
}

/// Returns true if the image has a version or a digest, so that it stays the same.
fn is_pinned(image: &str) -> bool {
    let is_version = |tag: &str| tag.trim_start_matches('v').starts_with(|first: char| first.is_ascii_digit());
    image.contains("@sha256:")
        || image.rsplit_once(':').is_some_and(|(_, tag)| is_version(tag) && !tag.contains('/') && tag.contains('.'))
}
