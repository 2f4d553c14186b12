//! Three nodes with storage, and others without, with the product as the pods that ship: kube-scheduler goes by free
//! space with storage capacity tracking and with the extender, a roll-out that cannot work stops at its first node, the
//! claim of a dead node is recreated on another one, and one without a volume goes from a deleted node to another one.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::ObjectList;
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{BUSYBOX, VolumeMode, claim, pod, storage_class, virtual_node};
use system_tests::product_images;
use system_tests::shared::TestCluster;
use system_tests::workloads;
use testbed::failure::WithState as _;
use testbed::sidecars::NAMESPACE;
use testbed::size::GIB;
use testbed::suite;
use testbed::topolvm::{self, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::kube_scheduler;

/// Index of the node with the largest volume group.
const LARGEST: usize = 2;
/// Index of the node of the control plane, which has no volume group.
const WITHOUT_STORAGE: usize = 3;
/// A StorageClass, and a StatefulSet of it.
const NAME: &str = "replicated";
/// Restarts of a container after which a roll-out that continues would have reached the next node.
const RESTARTS: i32 = 2;

pub(crate) fn tests() -> Vec<Trial> {
    let name = "pods_on_three_nodes_survive_bad_rollouts_and_a_dead_node";
    vec![suite::test(name, run_in_own_cluster)]
}

fn run_in_own_cluster() -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("topolvm-three-").tempdir_in("/var/tmp")?;
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(4)?, with_rebuild().write(scratch.path())?)?;
    for (node, disks) in spec.nodes.iter_mut().zip([vec![20 * GIB], vec![20 * GIB], vec![40 * GIB], vec![]]) {
        node.vg_disks = disks;
    }
    let shared = TestCluster::up("three", &spec)?;
    let outcome = add_nodes_without_storage(&shared)
        .and_then(|()| place_by_free_space(&shared))
        .and_then(|()| break_roll_out(&shared, "topolvm-lvmd"))
        .and_then(|()| break_roll_out(&shared, "topolvm-node"))
        .and_then(|()| check_ready(&shared))
        .and_then(|()| place_by_extender(&shared, scratch.path()))
        .and_then(|()| lose_node(&shared))
        .and_then(|()| lose_selected_node(&shared))
        .with_state(|| shared.kubectl(&["describe", "nodes,pods,pvc", "-A"]).unwrap_or_default());
    shared.down()?;
    outcome
}

/// Returns lvmd as a DaemonSet, and the component `rebuild` with a shorter grace period than by default.
fn with_rebuild() -> Kustomization<'static> {
    let path = "/spec/template/spec/containers/0/args/-";
    let soon = json!([{"op": "add", "path": path, "value": "--rebuild-grace-period=10s"}]);
    Kustomization {
        base: "overlays/lvmd",
        components: &["rebuild"],
        patches: vec![patch("Deployment", Some("topolvm-controller"), &soon)],
        ..Kustomization::default()
    }
}

/// Adds a virtual Node, and turns the node without a volume group into one of the control plane. The following
/// roll-outs start pods there.
fn add_nodes_without_storage(shared: &TestCluster) -> Result<()> {
    shared.apply(&virtual_node())?;
    let taint = "node-role.kubernetes.io/control-plane=:NoSchedule";
    shared.kubectl(&["taint", "node", shared.nodes[WITHOUT_STORAGE].name(), taint]).map(drop)
}

/// Checks that all pods of the DaemonSets are ready, also where there is no storage, and none waits for the virtual
/// Node.
fn check_ready(shared: &TestCluster) -> Result<()> {
    for name in ["topolvm-lvmd", "topolvm-node"] {
        let ready = workloads::wanted_and_ready(&shared.cluster, name)?;
        ensure!(ready == "4 4", "of {name} are wanted and ready: {ready}");
    }
    Ok(())
}

/// Starts two pods that must be on different nodes, and one that must be on the largest.
fn place_by_free_space(shared: &TestCluster) -> Result<()> {
    let mut class = storage_class(TopoLvm, NAME, None, false);
    class["parameters"]["topolvm.io/rebuild"] = json!("on-out-of-service-taint");
    shared.apply(&class)?;
    let labels = json!({"app": NAME});
    let apart = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}]);
    let container = json!({
        "name": "db", "image": BUSYBOX, "command": ["sleep", "infinity"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let spec = json!({
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
        "terminationGracePeriodSeconds": 0, "containers": [container],
    });
    shared.apply(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "serviceName": NAME, "replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": NAME,
                "resources": {"requests": {"storage": "64Mi"}},
            }}],
        },
    }))?;
    place_large(shared)?;
    shared.kubectl(&["rollout", "status", "statefulset", NAME, "--timeout=180s"]).map(drop)
}

/// Replaces storage capacity tracking by the extender, as pods on the node of the control plane, where kube-scheduler
/// runs with the configuration that ships.
fn place_by_extender(shared: &TestCluster, scratch: &Path) -> Result<()> {
    let extended = Kustomization {
        components: &["rebuild", "webhooks", "certificate-self-managed", "scheduler-daemonset"],
        ..with_rebuild()
    };
    let node = &shared.nodes[WITHOUT_STORAGE];
    shared.kubectl(&["label", "node", node.name(), "node-role.kubernetes.io/control-plane="])?;
    topolvm::roll_out(&shared.cluster, &extended.write(&scratch.join("extender"))?)?;
    kube_scheduler::move_to(shared, node, "scheduler-config.yaml")?;
    kube_scheduler::wait_for_webhook(shared)?;
    kube_scheduler::wait_for_proof(shared)?;
    place_large(shared)?;
    let said = shared.kubectl(&["logs", "-n", NAMESPACE, "daemonset/topolvm-scheduler", "--tail=-1"])?;
    ensure!(said.contains(r#""url":"/predicate""#), "kube-scheduler has not asked: {said}");
    Ok(())
}

/// Starts a pod whose volume fits only on the largest node, and deletes it.
fn place_large(shared: &TestCluster) -> Result<()> {
    shared.apply(&claim("large", NAME, "15Gi", VolumeMode::Block))?;
    shared.apply(&pod("large", "large", VolumeMode::Block))?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/large", "--timeout=180s"])?;
    let largest = shared.nodes[LARGEST].name();
    let on = shared.value("pod", "large", ".spec.nodeName")?;
    ensure!(on == largest, "the volume that fits on {largest} alone is on {on}");
    shared.kubectl(&["delete", "pod/large", "pvc/large", "--timeout=180s"]).map(drop)
}

/// Rolls a DaemonSet out with an argument that its program refuses. Its first new pod crashes repeatedly, the pods of
/// the other nodes stay, and volumes are created there. Then undoes the roll-out.
fn break_roll_out(shared: &TestCluster, name: &str) -> Result<()> {
    let before = pods_of(shared, name)?;
    ensure!(before.len() == shared.nodes.len(), "{name} has pods on {} nodes", before.len());
    let refused = json!([{"op": "add", "path": "/spec/template/spec/containers/0/args", "value": ["--no-such-flag"]}]);
    let daemon_set = format!("daemonset/{name}");
    shared.kubectl(&["patch", "-n", NAMESPACE, &daemon_set, "--type=json", "-p", &refused.to_string()])?;
    let broken = shared.cluster.ready("apiserver", || {
        let now = pods_of(shared, name)?;
        let new = now.iter().find(|(node, state)| before.get(*node).is_none_or(|old| old.uid != state.uid));
        let (node, state) = new.context("no pod is new")?;
        ensure!(state.restarts >= RESTARTS, "the new pod was started {} times", state.restarts);
        Ok(node.clone())
    })?;
    let mut others = pods_of(shared, name)?;
    others.remove(&broken);
    ensure!(
        others.len() + 1 == before.len()
            && others.iter().all(|(node, state)| before.get(node) == Some(state) && state.is_ready),
        "{name} went on after {broken}: {before:?} {others:?}"
    );
    let without_storage = shared.nodes[WITHOUT_STORAGE].name();
    let meanwhile = others.keys().find(|node| *node != without_storage).context("there is no other node")?;
    let mut pod = pod("meanwhile", "meanwhile", VolumeMode::Block);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": meanwhile});
    shared.apply(&claim("meanwhile", NAME, "64Mi", VolumeMode::Block))?;
    shared.apply(&pod)?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/meanwhile", "--timeout=180s"])?;
    shared.kubectl(&["delete", "pod/meanwhile", "pvc/meanwhile", "--timeout=180s"])?;
    shared.kubectl(&["rollout", "undo", "-n", NAMESPACE, &daemon_set])?;
    shared.kubectl(&["rollout", "status", "-n", NAMESPACE, &daemon_set, "--timeout=300s"]).map(drop)
}

/// Powers off the node of a pod and does not start it again. With the out-of-service taint, claim and pod are recreated
/// on another node, and the other pod stays as it is.
fn lose_node(shared: &TestCluster) -> Result<()> {
    let [kept, lost] = [0, 1].map(|number| format!("{NAME}-{number}"));
    let identity = |pod: &str| {
        let path = ".spec.nodeName} {.metadata.uid} {.status.containerStatuses[0].restartCount";
        shared.value("pod", pod, path)
    };
    let (of_kept, name) = (identity(&kept)?, shared.value("pod", &lost, ".spec.nodeName")?);
    let claim = format!("data-{lost}");
    let old = shared.value("pvc", &claim, ".metadata.uid")?;
    let node = shared.nodes.iter().find(|node| node.name() == name).context("the node of the pod")?;
    node.down()?;
    shared.kubectl(&["wait", "--for=condition=Ready=Unknown", "node", &name, "--timeout=180s"])?;
    shared.kubectl(&["taint", "node", &name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    shared.cluster.ready("apiserver", || {
        let new = shared.value("pvc", &claim, ".metadata.uid")?;
        ensure!(new != old, "the claim of the lost node was not recreated");
        Ok(())
    })?;
    shared.kubectl(&["rollout", "status", "statefulset", NAME, "--timeout=300s"])?;
    let on = shared.value("pod", &lost, ".spec.nodeName")?;
    ensure!(on != name, "the pod is on the lost node");
    ensure!(identity(&kept)? == of_kept, "the pod of another node is not the same any more");
    shared.kubectl(&["exec", &lost, "--", "touch", "/data/new"]).map(drop)
}

/// Deletes the Node that was selected for the claim of a Deployment before there is a volume. The same claim gets its
/// volume on another node, and the pod runs there.
fn lose_selected_node(shared: &TestCluster) -> Result<()> {
    let name = "selected";
    let mut alive = Vec::new();
    for node in &shared.nodes {
        let ready = r#".status.conditions[?(@.type=="Ready")].status"#;
        if shared.value("node", node.name(), ready)? == "True" {
            alive.push(node);
        }
    }
    // So that no volume is created
    alive.iter().try_for_each(|node| node.script("kill -STOP $(pidof lvmd)").map(drop))?;
    shared.apply(&storage_class(TopoLvm, name, None, false))?;
    shared.apply(&claim(name, name, "64Mi", VolumeMode::Filesystem))?;
    let labels = json!({"app": name});
    let spec = pod(name, name, VolumeMode::Filesystem)["spec"].take();
    shared.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }))?;
    let selected = shared.cluster.ready("apiserver", || {
        let node = shared.value("pvc", name, r".metadata.annotations.volume\.kubernetes\.io/selected-node")?;
        ensure!(!node.is_empty(), "no node is selected for the claim");
        Ok(node)
    })?;
    let old = shared.value("pvc", name, ".metadata.uid} {.status.phase")?;
    ensure!(old.ends_with(" Pending"), "the claim has a volume: {old}");
    shared.kubectl(&["delete", "node", &selected, "--timeout=180s"])?;
    alive.iter().try_for_each(|node| node.script("kill -CONT $(pidof lvmd)").map(drop))?;
    shared.wait_value("pvc", name, ".status.phase", "Bound")?;
    shared.kubectl(&["rollout", "status", "deployment", name, "--timeout=180s"])?;
    let new = shared.value("pvc", name, ".metadata.uid} {.status.phase")?;
    ensure!(new == old.replace("Pending", "Bound"), "another claim was created: {old} became {new}");
    let on = shared.kubectl(&["get", "pods", "-l", "app=selected", "-o", "jsonpath={.items[*].spec.nodeName}"])?;
    ensure!(!on.split_whitespace().any(|node| node == selected), "the pod is on the deleted node: {on}");
    shared.kubectl(&["exec", "deployment/selected", "--", "touch", "/data/new"]).map(drop)
}

/// State of a pod, which its successor does not share.
#[derive(Debug, PartialEq, Eq)]
struct PodState {
    uid: String,
    restarts: i32,
    is_ready: bool,
}

/// Returns the pods of a DaemonSet that are not being deleted, by node.
fn pods_of(shared: &TestCluster, daemon_set: &str) -> Result<BTreeMap<String, PodState>> {
    let selector = format!("app.kubernetes.io/component={}", daemon_set.trim_start_matches("topolvm-"));
    let pods = shared.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", "json"])?;
    let pods: ObjectList<Pod> = serde_json::from_str(&pods)?;
    let of_pod = |pod: Pod| {
        let containers: Vec<ContainerStatus> = pod.status.and_then(|status| status.container_statuses)?;
        let state = PodState {
            uid: pod.metadata.uid?,
            restarts: containers.iter().map(|container| container.restart_count).sum(),
            is_ready: containers.iter().all(|container| container.ready),
        };
        Some((pod.spec?.node_name?, state))
    };
    let alive = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(alive.filter_map(of_pod).collect())
}
