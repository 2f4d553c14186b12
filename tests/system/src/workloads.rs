//! The product's workloads in pods: on how many nodes they are ready, another lvmd.yaml, and nodes that a DaemonSet is
//! kept off.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::sidecars::NAMESPACE;

/// Name of the ConfigMap with lvmd.yaml.
const LVMD_CONFIG: &str = "topolvm-lvmd";

/// Reads the lvmd.yaml of lvmd in pods.
pub fn lvmd_config(cluster: &Cluster) -> Result<Value> {
    let map = cluster.kubectl_ok(["get", "configmap", "-n", NAMESPACE, LVMD_CONFIG, "-o", "json"])?;
    let mut map: Value = serde_json::from_str(&map).context("kubectl prints no JSON")?;
    map.pointer_mut("/data/lvmd.yaml").map(Value::take).context("the ConfigMap has no lvmd.yaml")
}

/// Sets the lvmd.yaml of lvmd in pods, and has kubelet update it at once.
pub fn set_lvmd_config(cluster: &Cluster, text: &Value) -> Result<()> {
    let patch = json!({"data": {"lvmd.yaml": text}}).to_string();
    cluster.kubectl_ok(["patch", "configmap", "-n", NAMESPACE, LVMD_CONFIG, "--type=merge", "-p", &patch])?;
    let version = "jsonpath={.metadata.resourceVersion}";
    let version = cluster.kubectl_ok(["get", "configmap", "-n", NAMESPACE, LVMD_CONFIG, "-o", version])?;
    let annotation = format!("example.com/configuration={version}");
    let selector = "-l=app.kubernetes.io/component=lvmd";
    cluster.kubectl_ok(["annotate", "pods", "-n", NAMESPACE, selector, "--overwrite", &annotation]).map(drop)
}

/// Reads the numbers of desired and of ready pods of a DaemonSet, as `2 2`.
pub fn wanted_and_ready(cluster: &Cluster, daemon_set: &str) -> Result<String> {
    let path = "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}";
    cluster.kubectl_ok(["get", "daemonset", daemon_set, "-n", NAMESPACE, "-o", path])
}

/// Takes the pods of a DaemonSet off all nodes.
pub fn keep_off_nodes(cluster: &Cluster, daemon_set: &str) -> Result<()> {
    select_nodes(cluster, daemon_set, &json!({"example.com/place": "nowhere"}))
}

/// Lets a DaemonSet have its pods on all nodes again, and waits until they run.
pub fn put_back_on_nodes(cluster: &Cluster, daemon_set: &str) -> Result<()> {
    select_nodes(cluster, daemon_set, &Value::Null)?;
    let daemon_set = format!("daemonset/{daemon_set}");
    cluster.kubectl_ok(["rollout", "status", "-n", NAMESPACE, &daemon_set, "--timeout=180s"]).map(drop)
}

fn select_nodes(cluster: &Cluster, daemon_set: &str, labels: &Value) -> Result<()> {
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": labels}}}}).to_string();
    cluster.kubectl_ok(["patch", "daemonset", "-n", NAMESPACE, daemon_set, "--type=merge", "-p", &patch]).map(drop)
}
