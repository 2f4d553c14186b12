//! A roll-out that cannot work stops at its first node, one with `maxSurge` hands over from pod to pod, and LVM that
//! people run in a container is that of its node.

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

/// Rolls lvmd and the agent out with `maxSurge`: each successor waits for the socket of its predecessor and takes it
/// over, and none ends.
pub(super) fn roll_out_with_surge(shared: &TestCluster) -> Result<()> {
    for workload in ["topolvm-lvmd", "topolvm-node"] {
        let daemon_set = format!("daemonset/{workload}");
        set_surge(shared, &daemon_set, 1)?;
        shared.kubectl(&["rollout", "restart", "-n", NAMESPACE, &daemon_set])?;
        shared.kubectl(&["rollout", "status", "-n", NAMESPACE, &daemon_set, "--timeout=300s"])?;
        let component = workload.trim_start_matches("topolvm-");
        let selector = format!("app.kubernetes.io/component={component}");
        let path = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
        // The predecessor may still be ending
        shared.cluster.ready("apiserver", || {
            let restarts = shared.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", path])?;
            ensure!(restarts == "0", "{workload} was started again: {restarts}");
            Ok(())
        })?;
        set_surge(shared, &daemon_set, 0)?;
    }
    Ok(())
}

fn set_surge(shared: &TestCluster, daemon_set: &str, pods: u8) -> Result<()> {
    let strategy = json!({"maxSurge": pods, "maxUnavailable": 1 - pods});
    let patch = json!({"spec": {"updateStrategy": {"rollingUpdate": strategy}}}).to_string();
    shared.kubectl(&["patch", "-n", NAMESPACE, daemon_set, "--type=merge", "-p", &patch]).map(drop)
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
