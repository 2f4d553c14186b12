//! A roll-out that cannot work stops at its first node, and LVM that people run in a container is that of its node.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::shared::TestCluster;
use testbed::sidecars::NAMESPACE;

/// Restarts lvmd with a configuration that cannot work: its pod, and the agent, which has no lvmd, are not ready. Then
/// takes the configuration back, with which both are ready again.
pub(super) fn break_configuration(shared: &TestCluster) -> Result<()> {
    let file =
        shared.kubectl(&["get", "configmap", "topolvm-lvmd", "-n", NAMESPACE, "-o", "jsonpath={.data.lvmd\\.yaml}"])?;
    configure(shared, "device-classes: none\n")?;
    for workload in ["topolvm-lvmd", "topolvm-node"] {
        shared.cluster.ready("apiserver", || {
            let path = "jsonpath={.status.numberUnavailable}";
            let unavailable = shared.kubectl(&["get", "daemonset", workload, "-n", NAMESPACE, "-o", path])?;
            ensure!(unavailable == "1", "{workload} is available with a configuration that cannot work");
            Ok(())
        })?;
    }
    configure(shared, &file)?;
    for workload in ["daemonset/topolvm-lvmd", "daemonset/topolvm-node"] {
        shared.kubectl(&["rollout", "status", "-n", NAMESPACE, workload, "--timeout=300s"])?;
    }
    Ok(())
}

/// Writes lvmd's configuration, and restarts lvmd.
fn configure(shared: &TestCluster, file: &str) -> Result<()> {
    let patch = json!({"data": {"lvmd.yaml": file}}).to_string();
    shared.kubectl(&["patch", "configmap", "topolvm-lvmd", "-n", NAMESPACE, "--type=merge", "-p", &patch])?;
    shared.kubectl(&["rollout", "restart", "-n", NAMESPACE, "daemonset/topolvm-lvmd"]).map(drop)
}

/// Runs `vgs`, `pvs` and `lvs` in the containers of the node.
pub(super) fn check_lvm_commands(shared: &TestCluster) -> Result<()> {
    for workload in ["daemonset/topolvm-node", "daemonset/topolvm-lvmd"] {
        for command in ["vgs", "pvs", "lvs"] {
            let shown = shared.kubectl(&["exec", "-n", NAMESPACE, workload, "--", command])?;
            ensure!(shown.contains("myvg1") || command == "lvs", "{command} in {workload} shows {shown:?}");
        }
    }
    Ok(())
}
