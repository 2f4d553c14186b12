//! Capacity of nodes that do not exist yet, published for a cluster autoscaler as in docs/autoscaling.md. The
//! autoscaler runs kube-scheduler's code for a Node with this label.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::sidecars::NAMESPACE;

use super::setup::{Setup, WAITING};

/// Label of the template Nodes of cluster-autoscaler.
const TEMPLATE: &str = "cluster-autoscaler.kubernetes.io/template-node";

pub(super) fn publish_capacity(setup: &Setup<'_>) -> Result<()> {
    let resources = json!({"cpu": "4", "memory": "16Gi", "pods": "110"});
    setup.apply(&[
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "template", "labels": {TEMPLATE: "true", "topology.topolvm.io/node": "gone"}},
        }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": "template-nodes", "namespace": NAMESPACE},
            "nodeTopology": {"matchLabels": {TEMPLATE: "true"}},
            "storageClassName": WAITING, "capacity": "3000Gi", "maximumVolumeSize": "3000Gi",
        }),
    ])?;
    let status = json!({"status": {"capacity": resources, "allocatable": resources}}).to_string();
    setup.fixture.kubectl(&["patch", "node", "template", "--subresource=status", "--type=merge", "-p", &status])?;
    setup.apply_pod("scaled", &[("scaled", (WAITING, 2500))])?;
    // kube-scheduler selects it, and csi-provisioner finds no such node
    let words = "failed to get selected CSINode template";
    setup.fixture.wait_event("PersistentVolumeClaim", "scaled", "Warning ProvisioningFailed", words)?;
    setup.check_pending("scaled")?;
    setup.delete_pod("scaled", &["scaled"])?;
    setup.fixture.kubectl(&["delete", "node", "template", "--timeout=180s"])?;
    let object =
        setup.fixture.kubectl(&["get", "csistoragecapacity", "template-nodes", "-n", NAMESPACE, "-o", "name"])?;
    ensure!(!object.is_empty(), "the object that an administrator wrote has been removed");
    setup.fixture.kubectl(&["delete", "csistoragecapacity", "template-nodes", "-n", NAMESPACE]).map(drop)
}
