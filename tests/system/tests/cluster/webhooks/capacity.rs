//! Annotations and resources of pods with claims and generic ephemeral volumes, with each setting of
//! `--pod-capacity-resource`, and with each scheduling mode.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::assets;
use testbed::topolvm::{self, CONTROLLER};
use topolvm_api::ApiFlavor;

use super::scheduling_mode;
use super::setup::{CLASS, NAMESPACE, Setup};

const MIB: u64 = 1 << 20;
const RESOURCE: &str = "topolvm.io/capacity";
/// Name of a StorageClass and of its device class.
const FAST: &str = "fast";
/// Name of a namespace without webhooks.
const LEFT_ALONE: &str = "left-alone";

pub(super) fn check_capacity(setup: &Setup) -> Result<()> {
    let cluster = &setup.cluster;
    let namespace = format!("--webhook-namespace={NAMESPACE}");
    let flags = ["--enable-webhooks", "--pvc-finalizer", &namespace];
    let mut spec = setup.usual_spec("extender", &flags)?;
    spec.controller_arguments.push("--pod-capacity-resource=bytes".to_owned());
    topolvm::start(cluster, &[], &spec)?;

    // Of the node's default device class, and now also the cluster's default
    let default = "storageclass.kubernetes.io/is-default-class=true";
    cluster.kubectl_ok(["annotate", "storageclass", CLASS, default])?;
    cluster.apply(&storage_class(ApiFlavor::TopoLvm, FAST, Some(FAST), false).to_string())?;
    cluster.kubectl_ok(["create", "namespace", LEFT_ALONE])?;
    cluster.kubectl_ok(["label", "namespace", LEFT_ALONE, "topolvm.io/webhook=ignore"])?;
    cluster.ready(CONTROLLER, || cluster.kubectl_ok(["get", "serviceaccount", "default", "-n", LEFT_ALONE]))?;
    for (name, class, size) in [("usual", CLASS, "800Mi"), ("quick", FAST, "600Mi")] {
        // Refused until the API server has received the authority
        cluster.ready(CONTROLLER, || setup.create(&claim(name, class, size, VolumeMode::Filesystem), &[]))?;
    }

    // The default class: 800 Mi, 332 Mi, and 300 Mi, which is the least that XFS gets; the other: 600 Mi and 300 Mi
    let sizes = [("00default", 1432 * MIB), (FAST, 900 * MIB)];
    // Each of the five volumes in whole GiB
    check(setup, &pod_with_all_volumes(), &sizes, Some("5368709120"))?;
    let whole = with_volumes(&[ephemeral("scratch", Some(CLASS), "2Gi")]);
    check(setup, &whole, &[("00default", 2048 * MIB)], Some("2147483648"))?;
    check_rounding(setup)?;
    check(setup, &with_volumes(&[ephemeral("theirs", Some("foreign-class"), "2Gi")]), &[], None)?;
    create_pod(setup)?;

    for (setting, amount) in [("marker", Some("1")), ("none", None)] {
        cluster.stop(CONTROLLER, Duration::from_secs(10))?;
        spec.controller_arguments.pop();
        spec.controller_arguments.push(format!("--pod-capacity-resource={setting}"));
        topolvm::start_controller(cluster, &spec)?;
        // Refused until the new controller serves
        cluster.ready(CONTROLLER, || setup.dry_run_create(&pod_with_all_volumes()))?;
        check(setup, &pod_with_all_volumes(), if amount.is_some() { &sizes } else { &[] }, amount)?;
    }
    spec.controller_arguments.pop();
    scheduling_mode::check_modes(setup, &spec)
}

fn check_rounding(setup: &Setup) -> Result<()> {
    let above = with_volumes(&[ephemeral("scratch", Some(CLASS), "2147483649")]);
    check(setup, &above, &[("00default", 2048 * MIB + 1)], Some("3221225472"))
}

/// Creates a pod without dry run, and checks the claim of its ephemeral volume.
fn create_pod(setup: &Setup) -> Result<()> {
    let user = setup.create(&with_volumes(&[ephemeral("scratch", Some(FAST), "300Mi")]), &[])?;
    let claim = setup.cluster.ready(CONTROLLER, || setup.get(&["persistentvolumeclaim", "user-scratch"]))?;
    let finalizers = &claim["metadata"]["finalizers"];
    ensure!(*finalizers == json!(["kubernetes.io/pvc-protection", "topolvm.io/pvc"]), "{claim}");
    ensure!(claim["metadata"]["ownerReferences"][0]["uid"] == user["metadata"]["uid"], "{claim}");
    setup.cluster.kubectl_ok(["delete", "pod", "user", "--now"]).map(drop)
}

/// Checks that a pod gets annotations with these sizes and, on its first container, this amount of the resource, if
/// any. All other fields are as in a pod that no webhook has changed.
fn check(setup: &Setup, pod: &Value, sizes: &[(&str, u64)], amount: Option<&str>) -> Result<()> {
    let changed = setup.dry_run_create(pod)?;
    let mut expected = pod.clone();
    expected["metadata"]["namespace"] = json!(LEFT_ALONE);
    let mut expected = setup.dry_run_create(&expected)?;
    for field in ["namespace", "uid", "creationTimestamp"] {
        expected["metadata"][field] = changed["metadata"][field].clone();
    }
    for (class, bytes) in sizes {
        expected["metadata"]["annotations"][format!("capacity.topolvm.io/{class}")] = json!(bytes.to_string());
    }
    for kind in ["requests", "limits"] {
        if let Some(amount) = amount {
            expected["spec"]["containers"][0]["resources"][kind][RESOURCE] = json!(amount);
        }
    }
    ensure!(changed == expected, "is\n{changed:#}\nand not\n{expected:#}");
    // Fields that the API server drops would prove nothing
    for field in ["hostnameOverride", "resources", "topologySpreadConstraints"] {
        ensure!(expected["spec"].get(field) == pod["spec"].get(field), "the API server drops {field}: {expected:#}");
    }
    let rules = |pod: &Value| pod["spec"]["containers"][1]["restartPolicyRules"].clone();
    ensure!(rules(&expected) == rules(pod), "the API server drops rules: {expected:#}");
    Ok(())
}

/// Returns a pod with volumes of all kinds, and fields of old and new versions of Kubernetes.
fn pod_with_all_volumes() -> Value {
    let claimed = |name: &str, claim: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
    let mut pod = with_volumes(&[
        claimed("data", "usual"),
        claimed("again", "usual"),
        claimed("quick", "quick"),
        claimed("missing", "not-there-yet"),
        ephemeral("scratch", Some(FAST), "300Mi"),
        ephemeral("unnamed", None, "332Mi"),
        ephemeral("tiny", Some(CLASS), "1Mi"),
        ephemeral("theirs", Some("foreign-class"), "5Gi"),
        json!({"name": "empty", "emptyDir": {"sizeLimit": "5Gi"}}),
    ]);
    pod["metadata"]["annotations"] = json!({"team": "blue", "capacity.topolvm.io/other": "kept"});
    let spec = &mut pod["spec"];
    spec["containers"][0]["resources"] = json!({
        "requests": {"cpu": "100m", "memory": "16Mi", "example.com/other": "2"},
        "limits": {"memory": "32Mi", "example.com/other": "2"},
    });
    let mut second = json!({
        "name": "second", "image": "example.com/second", "resources": {"requests": {"cpu": "1"}},
    });
    spec["initContainers"] = json!([{"name": "first", "image": "example.com/first", "restartPolicy": "Always"}]);
    // Younger than the oldest Kubernetes that the product is for
    if !assets::is_oldest_kubernetes() {
        second["restartPolicy"] = json!("Never");
        second["restartPolicyRules"] = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
        spec["hostnameOverride"] = json!("elsewhere");
        spec["resources"] = json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    }
    spec["containers"].as_array_mut().into_iter().for_each(|containers| containers.push(second.clone()));
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["c"],
    }]);
    pod
}

fn with_volumes(volumes: &[Value]) -> Value {
    let mut pod = pod("user", "usual", VolumeMode::Filesystem);
    pod["spec"]["volumes"] = json!(volumes);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([]);
    // Its volume would have a name by chance
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod["metadata"]["annotations"] = json!({"team": "blue"});
    pod
}

fn ephemeral(name: &str, class: Option<&str>, size: &str) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    if let Some(class) = class {
        spec["storageClassName"] = json!(class);
    }
    json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
}
