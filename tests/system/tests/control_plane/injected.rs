//! Many faults at once in a cluster that was healthy: one run of `doctor` names each of them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot_class, storage_class};
use system_tests::plugin;
use system_tests::shared::TestCluster;
use testbed::sidecars::{Sidecar, apply_snapshot_crds};
use topolvm_api::ApiFlavor;
use topolvm_testkit::lvm::FakeLvm;

const CLASS: &str = "vault-storage";
/// Volume group of each node.
pub(crate) const GROUP: &str = "ssd";

/// The checks that must have findings, with parts of their texts.
const EXPECTED: [(&str, &str); 23] = [
    ("controller", "deployment/topolvm-controller: none of 0 replicas is ready"),
    ("leases", "in the future"),
    ("webhooks", "is for elsewhere.example, but the API server requests topolvm-controller.topolvm-system.svc"),
    ("storage-classes", "StorageClass impossible: no node has the device class \"tape\""),
    ("storage-classes", "StorageClass hasty: volumes are bound before kube-scheduler selects"),
    ("marker-pods", "default/marked (no owner)"),
    ("capacity-tracking", "it runs without --enable-capacity"),
    ("capacity-tracking", "it lacks the environment variable POD_NAME, it lacks the environment variable NAMESPACE"),
    ("capacity-tracking", "its objects belong to its pod or ReplicaSet"),
    ("capacity-tracking", "on node vanished: the node does not exist"),
    ("unscheduled-pods", "pod default/bypassing on node n1 bypassed kube-scheduler"),
    ("selected-nodes", "claim default/misplaced has the selected node vanished"),
    ("copies", "default/copy waits for the PersistentVolumeClaim default/no-such"),
    ("copies", "claim vault/smaller requests 5Gi, but claim vault/data-vault-0 has 10Gi"),
    ("copies", "claim vault/elsewhere of StorageClass impossible is in the device class \"tape\""),
    ("snapshots", "no component creates snapshots"),
    ("snapshots", "snapshot.storage.k8s.io lacks volumesnapshots"),
    ("volumes", "LogicalVolume stray is on node vanished"),
    ("volumes", "PersistentVolume empty has no LogicalVolume"),
    ("volumes", "the LV of LogicalVolume"),
    ("kernels", "StorageClass impossible uses xfs, but the kernel of n1"),
    ("leftovers", "node n2 has the finalizer topolvm.cybozu.com/node"),
    ("leftovers", "node n2 has annotations of topolvm.cybozu.com"),
];

/// The checks whose findings the printed commands fix: a person must choose another device class.
const FIXED: [&str; 4] = ["capacity-tracking", "unscheduled-pods", "selected-nodes", "leftovers"];

/// Injects the faults and checks that they are named, that nothing else is, and that the printed commands fix those
/// with commands.
pub(crate) fn check_faults(shared: &TestCluster, lvms: &[FakeLvm]) -> Result<()> {
    // It would remove the annotation of a node that does not exist
    Sidecar::Provisioner.stop(&shared.cluster)?;
    inject_in_pods_and_claims(shared)?;
    inject_in_nodes(shared)?;
    inject_in_driver(shared)?;
    // As an administrator does with lvremove
    let volume = |lvm: &FakeLvm| Some((lvm.clone(), lvm.volumes(GROUP).pop()?));
    let (lvm, volume) = lvms.iter().find_map(volume).context("no node has a volume")?;
    lvm.remove_volume(GROUP, &volume);
    let expected: BTreeSet<_> = EXPECTED.iter().map(|(name, _)| *name).collect();
    wait_for_findings(shared, &expected, &EXPECTED)?;
    plugin::run_printed_commands(&shared.cluster)?;
    let left = expected.into_iter().filter(|name| !FIXED.contains(name)).collect();
    wait_for_findings(shared, &left, &[])?;
    switch_mode(shared)
}

/// Checks that nodes whose lvmd has ended are named, although no metrics report it.
pub(crate) fn check_without_lvmd(shared: &TestCluster) -> Result<()> {
    let named = ["n1", "n2"].map(|node| format!("node {node}: topolvm-node cannot reach lvmd"));
    let named = named.each_ref().map(|words| (words.as_str(), "check that lvmd runs on the node"));
    plugin::wait_for_findings(&shared.cluster, "storage", &named)
}

/// Waits until only these checks have findings, with these texts.
fn wait_for_findings(shared: &TestCluster, expected: &BTreeSet<&str>, named: &[(&str, &str)]) -> Result<()> {
    shared.cluster.ready("apiserver", || {
        let report = plugin::json(&shared.cluster, &["doctor"])?;
        let checks = report["checks"].as_array().context("a report without checks")?;
        let bad: Vec<_> = checks.iter().filter(|check| check["result"] != "ok").collect();
        let names: BTreeSet<_> = bad.iter().filter_map(|check| check["name"].as_str()).collect();
        ensure!(names == *expected, "doctor names {names:?} and not {expected:?}: {bad:#?}");
        for (name, words) in named {
            let checks = bad.iter().filter(|check| check["name"] == *name);
            let mut findings = checks.filter_map(|check| check["findings"].as_array()).flatten();
            let is_named = findings.any(|finding| finding["found"].as_str().is_some_and(|text| text.contains(words)));
            ensure!(is_named, "{name} does not say {words:?}: {bad:#?}");
        }
        Ok(())
    })
}

/// Checks that a controller which finds no extender is taken out of its mode by the printed commands.
fn switch_mode(shared: &TestCluster) -> Result<()> {
    let path = "/spec/template/spec/containers/0/args";
    let arguments = ["--scheduling-mode=extender", "--enable-webhooks", "--pod-capacity-resource=marker"];
    let patch = json!([{"op": "replace", "path": path, "value": arguments}]).to_string();
    let deployment = ["-n", "topolvm-system", "patch", "deployment", "topolvm-controller", "--type=json", "-p", &patch];
    shared.kubectl(&deployment)?;
    shared.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "topolvm-extender-probe", "namespace": "topolvm-system"},
        "data": {"extender-proven": "false", "reason": "kube-scheduler does not call topolvm-scheduler"},
    }))?;
    let report = plugin::json(&shared.cluster, &["doctor"])?;
    let mut checks = report["checks"].as_array().into_iter().flatten();
    let found = checks.find(|check| check["name"] == "extender-called").context("no such check")?;
    ensure!(found.to_string().contains("no probe has confirmed"), "doctor says {found:#}");
    plugin::run_printed_commands(&shared.cluster)?;
    let arguments = ["-n", "topolvm-system", "get", "deployment", "topolvm-controller", "-o"];
    let format = "jsonpath={.spec.template.spec.containers[0].args}";
    let arguments = shared.kubectl(&[&arguments[..], &[format]].concat())?;
    ensure!(arguments == r#"["--scheduling-mode=capacity","--enable-webhooks"]"#, "the arguments are {arguments}");
    Ok(())
}

fn inject_in_pods_and_claims(shared: &TestCluster) -> Result<()> {
    for name in ["held", "misplaced"] {
        shared.apply(&claim(name, CLASS, "1Gi", VolumeMode::Filesystem))?;
    }
    shared.kubectl(&["annotate", "pvc", "misplaced", "volume.kubernetes.io/selected-node=vanished"])?;
    shared.apply(&copied_claim("copy", CLASS, "1Gi", DataSource::Claim("no-such")))?;
    for (name, class, size) in [("smaller", CLASS, "5Gi"), ("elsewhere", "impossible", "10Gi")] {
        let mut copy = copied_claim(name, class, size, DataSource::Claim("data-vault-0"));
        copy["metadata"]["namespace"] = json!("vault");
        shared.apply(&copy)?;
    }
    let mut bypassing = pod("bypassing", "held", VolumeMode::Filesystem);
    bypassing["spec"]["nodeName"] = json!("n1");
    bypassing["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    shared.apply(&bypassing)?;
    let mut marked = pod("marked", "unused", VolumeMode::Filesystem);
    marked["spec"]["volumes"] = json!([]);
    marked["spec"]["containers"][0]["volumeMounts"] = json!([]);
    let one = json!({"topolvm.io/capacity": "1"});
    marked["spec"]["containers"][0]["resources"] = json!({"requests": one, "limits": one});
    // Kept away from kube-scheduler, whose message would be another fault
    marked["spec"]["schedulerName"] = json!("absent");
    shared.apply(&marked)
}

fn inject_in_nodes(shared: &TestCluster) -> Result<()> {
    let finalizer = json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "topolvm.cybozu.com/node"}]);
    shared.kubectl(&["patch", "node", "n2", "--type=json", "-p", &finalizer.to_string()])?;
    shared.kubectl(&["annotate", "node", "n2", "capacity.topolvm.cybozu.com/ssd=1"])?;
    let info = |kernel: &str| -> Value {
        json!({
            "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "c", "kernelVersion": kernel,
            "kubeProxyVersion": "k", "kubeletVersion": "k", "machineID": "m", "operatingSystem": "linux",
            "osImage": "o", "systemUUID": "s",
        })
    };
    let status = json!({"status": {"nodeInfo": info("5.4.0-200-generic")}}).to_string();
    shared.kubectl(&["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", &status])?;
    shared.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "empty"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
            "csi": {"driver": "topolvm.io", "volumeHandle": "no-such"},
        },
    }))?;
    shared.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "stray"},
        "spec": {"name": "stray", "nodeName": "vanished", "size": "1Gi"},
    }))
}

fn inject_in_driver(shared: &TestCluster) -> Result<()> {
    let mut impossible = storage_class(ApiFlavor::TopoLvm, "impossible", Some("tape"), false);
    impossible["parameters"]["csi.storage.k8s.io/fstype"] = json!("xfs");
    shared.apply(&impossible)?;
    let mut hasty = storage_class(ApiFlavor::TopoLvm, "hasty", Some("ssd"), false);
    hasty["volumeBindingMode"] = json!("Immediate");
    shared.apply(&hasty)?;
    inject_in_programs(shared)?;
    shared.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": "forgotten", "namespace": "topolvm-system"}, "storageClassName": CLASS, "capacity": "1Gi",
        "nodeTopology": {"matchLabels": {"topology.topolvm.io/node": "vanished"}},
    }))?;
    shared.apply(&json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "topolvm-io", "namespace": "topolvm-system"},
        "spec": {"holderIdentity": "late", "leaseDurationSeconds": 15, "renewTime": "2999-01-01T00:00:00.000000Z"},
    }))?;
    define_half_of_snapshots(shared)?;
    shared.cluster.ready("apiserver", || shared.apply(&snapshot_class(ApiFlavor::TopoLvm, "snaps")))
}

/// Creates a Deployment whose csi-provisioner publishes nothing, and a webhook whose certificate is for another name.
fn inject_in_programs(shared: &TestCluster) -> Result<()> {
    let labels = json!({"app": "topolvm"});
    // A configuration that no controller serves would be a separate finding
    let arguments = ["--scheduling-mode=capacity", "--enable-webhooks"];
    shared.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "topolvm-controller", "namespace": "topolvm-system"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": "topolvm-controller", "containers": [
                    {"name": "topolvm-controller", "image": "none", "args": arguments},
                    {"name": "csi-provisioner", "image": "none"},
                ]},
            },
        },
    }))?;
    let certificate = shared.cluster.pki().server("elsewhere", None, &["elsewhere.example"], &[])?;
    shared.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "misnamed"},
        "webhooks": [{
            "name": "pvc-hook.topolvm.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {
                "service": {"namespace": "topolvm-system", "name": "topolvm-controller", "path": "/pvc/mutate"},
                "caBundle": ByteString(certificate.certificate.into_bytes()),
            },
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["persistentvolumeclaims"]}],
            "namespaceSelector": {"matchLabels": {"no-object": "has-this"}},
        }],
    }))
}

/// Installs the definitions of snapshots without that of VolumeSnapshot.
fn define_half_of_snapshots(shared: &TestCluster) -> Result<()> {
    apply_snapshot_crds(&shared.cluster)?;
    shared.kubectl(&["delete", "crd", "volumesnapshots.snapshot.storage.k8s.io", "--timeout=180s"]).map(drop)
}
