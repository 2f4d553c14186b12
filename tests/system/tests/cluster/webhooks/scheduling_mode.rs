//! The scheduling mode with a real kube-scheduler and a handmade Node. Without the extender pods get no resource and
//! are scheduled; with it they get the resource after one probe; after a change to the mode `capacity` the remaining
//! pods are named.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod};
use testbed::cluster::SCHEDULER_PROCESS;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};

use super::setup::{CLASS, NAMESPACE, Setup};

const RESOURCE: &str = "topolvm.io/capacity";
const INSUFFICIENT: &str = "Insufficient topolvm.io/capacity";
const NODE: &str = "by-hand";
/// Free bytes of the default device class of the Node.
const FREE: u64 = 10 << 30;
/// Name of the process of the extender.
const EXTENDER: &str = "topolvm-scheduler";
const GRACE: Duration = Duration::from_secs(10);

/// Goes through the modes with a controller of this specification, which has the arguments that all have.
pub(super) fn check_modes(setup: &Setup, spec: &TopolvmSpec) -> Result<()> {
    create_node(setup)?;
    restart_controller(setup, spec, &["--scheduling-mode=extender", "--extender-probe-interval=1s"])?;
    check_without_extender(setup)?;
    let without_extender = restart_scheduler_with_extender(setup, spec)?;
    check_with_extender(setup)?;
    restart_scheduler(setup, &without_extender)?;
    setup.cluster.ready(SCHEDULER_PROCESS, || ensure_refused(setup, "left", INSUFFICIENT))?;
    restart_controller(setup, spec, &["--scheduling-mode=capacity"])?;
    check_capacity_mode(setup)?;
    let log = fs::read_to_string(setup.cluster.log(CONTROLLER))?.to_lowercase();
    let refused: Vec<_> = log.lines().filter(|line| line.contains("forbidden")).collect();
    ensure!(refused.is_empty(), "a right is missing in rbac.yaml: {refused:#?}");
    Ok(())
}

fn check_without_extender(setup: &Setup) -> Result<()> {
    setup.cluster.ready(CONTROLLER, || {
        let outcome = setup.get(&["configmap", "topolvm-extender-probe", "-n", NAMESPACE])?;
        let reason = outcome["data"]["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains(INSUFFICIENT), "{outcome}");
        Ok(())
    })?;
    let created = create_user(setup, "unmarked", "1Gi")?;
    ensure!(requested(&created).is_null(), "{created}");
    let bytes = &created["metadata"]["annotations"]["capacity.topolvm.io/00default"];
    ensure!(*bytes == "1073741824", "{created}");
    wait_until_scheduled(setup, "unmarked")?;
    wait_for_event(
        setup,
        "Namespace",
        "ExtenderNotProven",
        &["kube-scheduler does not call topolvm-scheduler", "docs/scheduling.md"],
    )
}

fn check_with_extender(setup: &Setup) -> Result<()> {
    setup.cluster.ready(CONTROLLER, || {
        let tried = setup.dry_run_create(&user("tried"))?;
        ensure!(*requested(&tried) == "1", "{tried}");
        Ok(())
    })?;
    create_user(setup, "marked", "1Gi")?;
    wait_until_scheduled(setup, "marked")?;
    create_user(setup, "left", "100Gi")?;
    setup.cluster.ready(SCHEDULER_PROCESS, || ensure_refused(setup, "left", "out of VG free space"))
}

fn check_capacity_mode(setup: &Setup) -> Result<()> {
    wait_for_event(setup, "Pod", "CapacityResourceLeft", &["with: kubectl -n default delete pod left"])?;
    let tried = setup.dry_run_create(&user("tried"))?;
    ensure!(requested(&tried).is_null() && tried["metadata"]["annotations"].is_null(), "{tried}");
    Ok(())
}

/// Creates a Node as kubelet and the agent would, on which nothing runs.
fn create_node(setup: &Setup) -> Result<()> {
    let total = json!({"cpu": "4", "memory": "8Gi", "pods": "20"});
    let annotations = ["00default", "ssd"].map(|class| (format!("capacity.topolvm.io/{class}"), FREE.to_string()));
    setup.create(
        &json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": NODE, "labels": {"topology.topolvm.io/node": NODE},
                "annotations": std::collections::BTreeMap::from(annotations),
            },
            "status": {"capacity": total, "allocatable": total, "conditions": [{"type": "Ready", "status": "True"}]},
        }),
        &[],
    )?;
    let driver = json!({"name": "topolvm.io", "nodeID": NODE, "topologyKeys": ["topology.topolvm.io/node"]});
    let node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
        "spec": {"drivers": [driver]},
    });
    setup.create(&node, &[]).map(drop)
}

fn restart_controller(setup: &Setup, spec: &TopolvmSpec, flags: &[&str]) -> Result<()> {
    let mut spec = spec.clone();
    spec.controller_arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
    setup.cluster.stop(CONTROLLER, GRACE)?;
    topolvm::start_controller(&setup.cluster, &spec)?;
    // Refused until the new controller serves
    setup.cluster.ready(CONTROLLER, || setup.dry_run_create(&user("tried"))).map(drop)
}

/// Starts topolvm-scheduler, and kube-scheduler with the extender of the configuration that ships. Returns the
/// configuration that kube-scheduler had before.
fn restart_scheduler_with_extender(setup: &Setup, spec: &TopolvmSpec) -> Result<String> {
    let mut extender = setup.cluster.command(spec.programs.join(EXTENDER));
    let options = topolvm::manifests().join("components/scheduler-daemonset/scheduler-options.yaml");
    extender.arg("--config").arg(options).env("KUBECONFIG", setup.cluster.inner_kubeconfig());
    setup.cluster.spawn(EXTENDER, &extender)?;
    let shipped = topolvm::manifests().join("../../scheduler-config/scheduler-config.yaml");
    let shipped: Value = serde_saphyr::from_str(&fs::read_to_string(shipped)?)?;
    let before = fs::read_to_string(setup.cluster.directory().join("scheduler.yaml")).context("no configuration")?;
    restart_scheduler(setup, &format!("{before}extenders: {}\n", shipped["extenders"]))?;
    Ok(before)
}

fn restart_scheduler(setup: &Setup, config: &str) -> Result<()> {
    fs::write(setup.cluster.directory().join("scheduler.yaml"), config)?;
    setup.cluster.stop(SCHEDULER_PROCESS, GRACE)?;
    setup.cluster.spawn(SCHEDULER_PROCESS, &setup.cluster.scheduler_command())
}

/// Creates a claim and its pod, and returns the pod.
fn create_user(setup: &Setup, name: &str, size: &str) -> Result<Value> {
    setup.create(&claim(name, CLASS, size, VolumeMode::Filesystem), &[])?;
    setup.create(&user(name), &[])
}

/// Returns a pod with the claim of its name. kube-controller-manager takes the Node for one that is not ready.
fn user(name: &str) -> Value {
    let mut user = pod(name, if name == "tried" { "unmarked" } else { name }, VolumeMode::Filesystem);
    user["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    user["spec"]["automountServiceAccountToken"] = json!(false);
    user
}

/// Returns the amount of the resource that a pod requests; null if none.
fn requested(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["resources"]["requests"][RESOURCE]
}

/// Waits until kube-scheduler has selected the Node for the claim of a pod. It then waits for the volume, which is not
/// created here.
fn wait_until_scheduled(setup: &Setup, name: &str) -> Result<()> {
    setup.cluster.ready(SCHEDULER_PROCESS, || {
        let claim = setup.get(&["persistentvolumeclaim", name])?;
        let selected = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
        ensure!(*selected == NODE, "{claim}");
        Ok(())
    })
}

fn ensure_refused(setup: &Setup, name: &str, why: &str) -> Result<()> {
    let pod = setup.get(&["pod", name])?;
    let conditions = pod["status"]["conditions"].to_string();
    ensure!(conditions.contains(why), "{why:?} is not why it is pending: {conditions}");
    Ok(())
}

/// Waits for an Event of this reason about an object of this kind, with these texts.
fn wait_for_event(setup: &Setup, kind: &str, reason: &str, words: &[&str]) -> Result<()> {
    let selector = format!("--field-selector=reason={reason},involvedObject.kind={kind}");
    setup.cluster.ready(CONTROLLER, || {
        let events = setup.get(&["events", &selector])?;
        let note = events["items"][0]["message"].as_str().unwrap_or_default();
        ensure!(words.iter().all(|words| note.contains(words)), "{words:?} are not in {note:?}");
        Ok(())
    })
}
