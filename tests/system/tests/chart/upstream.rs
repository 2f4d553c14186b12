//! Renders the chart with a large file of values of TopoLVM's chart.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::equality::{SIDECARS, render, render_with};
use crate::objects::Objects;

pub(crate) fn check_rendered_values() -> Result<()> {
    let objects = render("upstream")?;
    controller(&objects)?;
    node(&objects)?;
    lvmd(&objects)?;
    let class = objects.find("StorageClass", "topolvm-thin")?;
    ensure!(class["parameters"]["topolvm.io/device-class"] == "hdd-thin", "a parameter is a template: {class}");
    ensure!(class["allowVolumeExpansion"] == false && class["volumeBindingMode"] == "Immediate", "{class}");
    ensure!(class["reclaimPolicy"] == "Retain" && class["mountOptions"] == json!(["noatime"]), "{class}");
    let default = &objects.find("StorageClass", "topolvm-provisioner")?["metadata"]["annotations"];
    ensure!(default["storageclass.kubernetes.io/is-default-class"] == "true", "{default}");
    ensure!(objects.find("PriorityClass", "topolvm")?["value"] == 1_000_000, "the value is no whole number");
    let annotations =
        &objects.find("CustomResourceDefinition", "logicalvolumes.topolvm.io")?["metadata"]["annotations"];
    ensure!(annotations["example.com/owner"] == "storage", "{annotations}");
    monitors(&objects)
}

fn controller(objects: &Objects) -> Result<()> {
    let deployment = objects.find("Deployment", "topolvm-controller")?;
    let pod = pod(deployment);
    ensure!(deployment["spec"]["replicas"] == 3 && pod["terminationGracePeriodSeconds"] == 0, "{deployment}");
    ensure!(pod["priorityClassName"] == "topolvm" && pod["nodeSelector"]["kubernetes.io/os"] == "linux", "{pod}");
    ensure!(pod["securityContext"]["runAsUser"] == 10000, "{pod}");
    let apart = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    let names = &apart["labelSelector"]["matchExpressions"][1]["values"];
    ensure!(*names == json!(["topolvm"]), "the affinity is a template: {apart}");
    let program = &pod["containers"][0];
    ensure!(
        program["args"] == json!(["--scheduling-mode=capacity", "--skip-node-finalize", "--zap-encoder=console"]),
        "{program}"
    );
    ensure!(program["imagePullPolicy"] == "IfNotPresent", "{program}");
    let image = program["image"].as_str().unwrap_or_default();
    ensure!(image.starts_with("registry.example.com/storage/topolvm:1.2.3@sha256:"), "{image}");
    let names: Vec<&str> = containers(pod).filter_map(name).collect();
    ensure!(names == ["topolvm-controller"], "no sidecar is needed: {names:?}");
    ensure!(pod["imagePullSecrets"] == json!([{"name": "registry"}]), "{pod}");
    let names: Vec<&str> = program["env"].as_array().into_iter().flatten().filter_map(name).collect();
    ensure!(names == ["CONTROLLERS", "POD_NAME", "TZ"], "{names:?}");
    check_sidecars()
}

/// Checks that the values of TopoLVM's chart for sidecars have their effect where these are enabled.
fn check_sidecars() -> Result<()> {
    let publisher = "controller.storageCapacityTracking.publisher=csi-provisioner";
    let objects = render_with("upstream", &["--set", SIDECARS, "--set", publisher])?;
    let pod = pod(objects.find("Deployment", "topolvm-controller")?);
    let images: Vec<&Value> = containers(pod).map(|container| &container["image"]).collect();
    let sidecars = [
        "registry.example.com/csi-provisioner:v6.3.0",
        // Not set there
        "registry.k8s.io/sig-storage/csi-resizer:v2.2.0",
        "registry.example.com/csi-snapshotter:v8.6.0",
    ];
    ensure!(images.get(1..) == Some(&sidecars.map(Value::from).each_ref()), "{images:?}");
    let provisioner = &pod["containers"][1];
    let flags = provisioner["args"].as_array().context("no flags")?;
    ensure!(flags.contains(&json!("--enable-capacity")), "{flags:?}");
    // TopoLVM's chart writes the member twice
    let names: Vec<&str> = provisioner["env"].as_array().into_iter().flatten().filter_map(name).collect();
    ensure!(names == ["POD_NAME", "NAMESPACE", "TZ"], "{names:?}");
    let controllers = &pod["containers"][0]["env"][0];
    ensure!(*controllers == json!({"name": "CONTROLLERS", "value": "none"}), "{controllers}");
    Ok(())
}

fn node(objects: &Objects) -> Result<()> {
    let pod = pod(objects.find("DaemonSet", "topolvm-node")?);
    let names: Vec<&str> = containers(pod).filter_map(name).collect();
    ensure!(names == ["topolvm-node"], "neither a registrar nor a liveness-probe is needed: {names:?}");
    let program = &pod["containers"][0];
    ensure!(
        program["args"]
            == json!([
                "--csi-socket=/var/lib/k0s/kubelet/plugins/topolvm.io/node/csi-topolvm.sock",
                "--health-probe-bind-address=:8081",
                "--kubelet-dir=/var/lib/k0s/kubelet",
                "-v=4"
            ]),
        "{program}"
    );
    ensure!(program["livenessProbe"].is_null(), "a slow LVM would restart the agent: {program}");
    let mounts = program["volumeMounts"].as_array().context("no mounts")?;
    ensure!(mounts.contains(&json!({"name": "extra", "mountPath": "/extra"})), "{program}");
    ensure!(program["resources"]["limits"]["memory"] == "500Mi", "{program}");
    let annotations = &objects.find("DaemonSet", "topolvm-node")?["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations["prometheus.io/port"] == "metrics", "{annotations}");
    Ok(())
}

/// Checks the lvmd of two kinds of nodes, which have different volume groups.
fn lvmd(objects: &Objects) -> Result<()> {
    for (name, selector, group) in [("topolvm-lvmd", "local", "fast"), ("topolvm-lvmd-1", "big", "big")] {
        let daemon_set = objects.find("DaemonSet", name)?;
        let pod = pod(daemon_set);
        ensure!(pod["nodeSelector"]["storage"] == selector, "{pod}");
        let arguments = json!(["--health-probe-bind-address=:8081", "--zap-log-level=debug"]);
        ensure!(pod["containers"][0]["args"] == arguments, "{pod}");
        ensure!(daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "50%", "{daemon_set}");
        let config = objects.find("ConfigMap", name)?["data"]["lvmd.yaml"].as_str().context("no lvmd.yaml")?;
        let config: Value = serde_saphyr::from_str(config)?;
        ensure!(config["device-classes"][0]["volume-group"] == group, "{config}");
        ensure!(config["socket-name"] == "/run/topolvm/lvmd.sock", "{config}");
        ensure!(config["lvm-command-prefix"].is_array() == (name == "topolvm-lvmd"), "{config}");
    }
    Ok(())
}

fn monitors(objects: &Objects) -> Result<()> {
    ensure!(objects.of_kind("PodMonitor").count() == 3, "controller, node and lvmd are to be watched");
    let node = objects.find("PodMonitor", "topolvm-node")?;
    ensure!(node["metadata"]["namespace"] == "monitoring" && node["metadata"]["labels"]["release"] == "prometheus");
    ensure!(node["spec"]["namespaceSelector"]["matchNames"] == json!(["topolvm-system"]), "{node}");
    let lvmd = objects.find("PodMonitor", "topolvm-lvmd")?;
    let components = &lvmd["spec"]["selector"]["matchExpressions"][0]["values"];
    ensure!(*components == json!(["lvmd", "lvmd-1"]), "{lvmd}");
    let interval = &lvmd["spec"]["podMetricsEndpoints"][0]["interval"];
    ensure!(interval == "30s", "{lvmd}");
    Ok(())
}

fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["containers"].as_array().into_iter().flatten()
}

fn name(value: &Value) -> Option<&str> {
    value["name"].as_str()
}
