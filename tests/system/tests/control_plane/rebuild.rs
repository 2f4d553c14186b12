//! Claims of lost nodes, which StatefulSets recreate.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::topolvm::manifests;

use crate::Body;
use crate::fixture::{CLASS, Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[("claims_of_lost_nodes_are_recreated_where_requested", rebuild)];

/// Names of a node and of the StatefulSet whose claim has its volume there, and when the claim is to be recreated.
const CASES: [(&str, &str); 4] = [
    ("deleted", "on-node-deleted"),
    ("outofservice", "on-out-of-service-taint"),
    ("never", "never"),
    ("notready", "on-out-of-service-taint"),
];

fn rebuild(fixture: &Fixture) -> Result<()> {
    // The rights of the component; only here, so that another test can check that the controller does not have them
    // otherwise
    let rights = manifests().join("components/rebuild/rbac.yaml");
    let rights = rights.to_string_lossy();
    fixture.kubectl(&["apply", "--server-side", "-f", &rights])?;
    let done = fixture.with_controller(&["--rebuild-claims", "--rebuild-grace-period=2s"], || lose_nodes(fixture));
    fixture.kubectl(&["delete", "-f", &rights])?;
    done
}

fn lose_nodes(fixture: &Fixture) -> Result<()> {
    for (name, when) in CASES {
        fixture.create_node(name)?;
        create_stateful_set(fixture, name, when)?;
    }
    let old = CASES.map(|(name, _)| uids(fixture, name));
    // A pod that runs there according to its status: the pod garbage collector of Kubernetes has to delete it
    bind_pod(fixture, "outofservice")?;
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}).to_string();
    fixture.kubectl(&["patch", "node", "notready", "--subresource=status", "--type=merge", "-p", &not_ready])?;
    let force = r#"{"metadata":{"finalizers":null}}"#;
    fixture.kubectl(&["patch", "node", "never", "--type=merge", "-p", force])?;
    fixture.kubectl(&["delete", "node", "never", "deleted", "--timeout=180s"])?;
    fixture.kubectl(&["taint", "node", "outofservice", "node.kubernetes.io/out-of-service=shutdown:NoExecute"])?;

    for (index, kept) in [(0, ""), (1, "Retain")] {
        let (name, (claim, pod)) = (CASES[index].0, old[index].as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?);
        fixture.cluster.ready("apiserver", || {
            let (new_claim, new_pod) = uids(fixture, name)?;
            ensure!(new_claim != *claim && new_pod != *pod, "claim or pod of {name} is still the old one");
            Ok(())
        })?;
        let claim = format!("data-{name}-0");
        fixture.wait_event("PersistentVolumeClaim", &claim, "Warning Rebuilding", "the data of this claim is lost")?;
        fixture.wait_event("PersistentVolumeClaim", &claim, "Warning Rebuilt", "was recreated empty")?;
        let policy = fixture.value("pv", &format!("pvc-{name}"), ".spec.persistentVolumeReclaimPolicy")?;
        ensure!(kept.is_empty() || policy == kept, "reclaim policy of {name}: {policy}");
        ensure!(fixture.exists(LV, &format!("pvc-{name}"))?, "the controller has removed a LogicalVolume itself");
    }
    // These are evaluated in the same passes as those above
    for index in [2, 3] {
        let (name, before) = (CASES[index].0, old[index].as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?);
        ensure!(uids(fixture, name)? == *before, "claim or pod of {name} were recreated");
    }
    fixture.check_rights()?;
    clean_up(fixture)
}

/// Creates a StatefulSet with one pod, and binds its claim to a volume of the node of the same name.
fn create_stateful_set(fixture: &Fixture, name: &str, when: &str) -> Result<()> {
    let annotations = json!({
        "topolvm.io/rebuild": when, "topolvm.io/rebuild-keep": (name == "outofservice").to_string(),
        "volume.kubernetes.io/storage-provisioner": "topolvm.io",
    });
    fixture.apply(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "serviceName": name, "replicas": 1, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [
                    {"name": "db", "image": "db", "volumeMounts": [{"name": "data", "mountPath": "/d"}]},
                ]},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data", "annotations": annotations}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                "resources": {"requests": {"storage": "1Gi"}},
            }}],
        },
    }))?;
    let (claim, volume) = (format!("data-{name}-0"), format!("pvc-{name}"));
    fixture.wait("--for=create", "pod", &format!("{name}-0"))?;
    fixture.create_volume(&volume, name)?;
    let policy = if name == "outofservice" { "Delete" } else { "Retain" };
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": policy, "claimRef": claim_reference(fixture, &claim)?,
            "csi": {"driver": "topolvm.io", "volumeHandle": fixture.value(LV, &volume, ".metadata.uid")?},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.topolvm.io/node", "operator": "In", "values": [name]},
            ]}]}},
        },
    }))?;
    fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", &claim)
}

fn claim_reference(fixture: &Fixture, claim: &str) -> Result<Value> {
    let uid = fixture.value("pvc", claim, ".metadata.uid")?;
    Ok(json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": uid}))
}

/// Puts the pod of a StatefulSet on the node of the same name, as kube-scheduler does.
fn bind_pod(fixture: &Fixture, name: &str) -> Result<()> {
    let pod = format!("{name}-0");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": name},
    });
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    std::fs::write(file.path(), binding.to_string())?;
    let path = format!("/api/v1/namespaces/default/pods/{pod}/binding");
    fixture.kubectl(&["create", "--raw", &path, "-f", &file.path().to_string_lossy()]).map(drop)
}

/// Returns the UIDs of the claim and of the pod of a StatefulSet.
fn uids(fixture: &Fixture, name: &str) -> Result<(String, String)> {
    let claim = fixture.value("pvc", &format!("data-{name}-0"), ".metadata.uid")?;
    Ok((claim, fixture.value("pod", &format!("{name}-0"), ".metadata.uid")?))
}

fn clean_up(fixture: &Fixture) -> Result<()> {
    let force = r#"{"metadata":{"finalizers":null}}"#;
    for (name, _) in CASES {
        let (claim, pod, volume) = (format!("data-{name}-0"), format!("{name}-0"), format!("pvc-{name}"));
        fixture.kubectl(&["delete", "statefulset", name, "--timeout=180s"])?;
        fixture.kubectl(&["delete", "pod", &pod, "--ignore-not-found", "--force", "--timeout=180s"])?;
        fixture.kubectl(&["delete", "pvc", &claim, "--timeout=180s"])?;
        fixture.kubectl(&["delete", "pv", &volume, "--timeout=180s"])?;
        fixture.kubectl(&["patch", LV, &volume, "--type=merge", "-p", force])?;
        fixture.kubectl(&["delete", LV, &volume, "--timeout=180s"])?;
        fixture.kubectl(&["delete", "node", name, "--ignore-not-found", "--timeout=180s"])?;
    }
    Ok(())
}
