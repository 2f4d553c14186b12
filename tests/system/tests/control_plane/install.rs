//! `kubectl topolvm install`, `upgrade` and `uninstall` in a cluster without nodes: rendered objects, plans, and
//! refusals. Old API servers are tried in the unit tests, nodes that do not fit in the cluster tests.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::objects::Objects;
use system_tests::plugin::{self, Answer};
use testbed::kubeconfig::Credential;
use testbed::sidecars::apply_snapshot_crds;
use testbed::topolvm::manifests;

use crate::Body;
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("what_install_renders_is_what_kustomize_makes_of_the_overlays", check_rendered),
    ("options_of_install_change_what_they_name_and_nothing_else", options),
    ("a_dry_run_of_install_names_each_object_and_changes_none", dry_run),
    ("install_refuses_an_unsuitable_cluster_and_changes_nothing", check_refusals),
    ("uninstall_refuses_while_volumes_exist_and_changes_nothing", uninstall_in_use),
];

fn run(fixture: &Fixture, arguments: &[&str]) -> Result<Answer> {
    plugin::run(&fixture.cluster, &fixture.cluster.inner_kubeconfig(), arguments)
}

fn render(fixture: &Fixture, flags: &[&str]) -> Result<String> {
    // No API server is contacted
    let arguments = [&["install", "--render", "--kubeconfig", "/nonexistent"], flags].concat();
    let answer = plugin::run(&fixture.cluster, Path::new("/nonexistent"), &arguments)?;
    ensure!(answer.is_success, "{flags:?}: {answer:?}");
    Ok(answer.text)
}

fn check_rendered(fixture: &Fixture) -> Result<()> {
    for (flags, overlay) in [
        (&[][..], "overlays/lvmd"),
        (&["--lvmd=embedded"], "overlays/embedded-lvmd"),
        (&["--lvmd=host"], "base"),
        (&["--lvmd=host", "--legacy"], "overlays/legacy"),
        (&["--lvmd=host", "--scheduling-mode=extender"], "overlays/extender"),
        (&["--lvmd=host", "--scheduling-mode=capacity"], "overlays/storage-capacity"),
        (&["--lvmd=host", "--scheduling=extender", "--certificates=cert-manager"], "overlays/extender-cert-manager"),
    ] {
        let ours = render(fixture, &[flags, &["--no-storage-class"]].concat())?;
        let kustomize = [Path::new("kustomize"), &manifests().join(overlay)];
        let expected = fixture.cluster.kubectl_ok(kustomize)?;
        ensure!(ours == expected, "{flags:?} is not {overlay}: {ours}");
    }
    Ok(())
}

fn options(fixture: &Fixture) -> Result<()> {
    let flags = [
        "--lvmd=embedded",
        "--scheduling=extender",
        "--volume-group=fast",
        "--image=registry.example:5000/topolvm:9",
        "--kubelet-dir=/var/lib/k0s/kubelet",
        "--controller-replicas=1",
        "--node-selector=storage=local",
        "--storage-class=fast",
        "--component=secure-metrics",
        "--component=monitoring",
        "-o",
        "json",
    ];
    let list: Value = serde_json::from_str(&render(fixture, &flags)?)?;
    let items = list["items"].as_array().context("no list")?;
    let one = |kind: &str, name: &str| {
        let mut items = items.iter();
        items
            .find(|item| item["kind"] == kind && item["metadata"]["name"] == name)
            .with_context(|| format!("no {kind} {name}"))
    };
    let config = &one("ConfigMap", "topolvm-lvmd")?["data"]["lvmd.yaml"];
    ensure!(config.as_str().is_some_and(|text| text.contains("volume-group: fast")), "{config}");
    let controller = &one("Deployment", "topolvm-controller")?["spec"];
    ensure!(controller["replicas"] == 1, "{controller}");
    let arguments = json!(["--scheduling-mode=extender", "--enable-webhooks"]);
    ensure!(controller["template"]["spec"]["containers"][0]["args"] == arguments, "{controller}");
    let pod = &one("DaemonSet", "topolvm-node")?["spec"]["template"]["spec"];
    ensure!(pod["nodeSelector"] == json!({"kubernetes.io/os": "linux", "storage": "local"}), "{pod}");
    let agent = &pod["containers"][0];
    ensure!(agent["image"] == "registry.example:5000/topolvm:9", "{agent}");
    let arguments = json!([
        "--csi-socket=/var/lib/k0s/kubelet/plugins/topolvm.io/node/csi-topolvm.sock",
        "--kubelet-dir=/var/lib/k0s/kubelet",
        "--health-probe-bind-address=:8081",
        "--embed-lvmd",
    ]);
    ensure!(agent["args"] == arguments, "{agent}");
    ensure!(!pod.to_string().contains("/var/lib/kubelet"), "the old directory is left in {pod}");
    ensure!(one("StorageClass", "fast")?["provisioner"] == "topolvm.io", "another provisioner");
    one("ClusterRole", "topolvm-system:metrics-server")?;
    one("PrometheusRule", "topolvm")?;
    let answer = run(fixture, &["install", "--lvmd=host", "--volume-group=fast", "--render"])?;
    ensure!(!answer.is_success && answer.errors.contains("lvmd on the host has its own configuration"), "{answer:?}");
    Ok(())
}

fn dry_run(fixture: &Fixture) -> Result<()> {
    apply_snapshot_crds(&fixture.cluster)?;
    let before = Objects::list(fixture)?;
    let answer = run(fixture, &["install", "--adopt", "--dry-run", "-o", "json"])?;
    ensure!(answer.is_success, "{answer:?}");
    let plan: Value = serde_json::from_str(&answer.text)?;
    let steps = plan["steps"].as_array().context("no steps")?;
    let action = |kind: &str, name: &str| {
        let step = steps.iter().find(|step| step["kind"] == kind && step["name"] == name);
        step.map(|step| step["action"].clone()).with_context(|| format!("{kind} {name} is not planned: {plan:#}"))
    };
    // The objects exist without our label, workloads do not exist, and a StorageClass is unchanged
    ensure!(action("CSIDriver", "topolvm.io")? == "change", "{plan:#}");
    ensure!(action("DaemonSet", "topolvm-lvmd")? == "create", "{plan:#}");
    ensure!(action("StorageClass", "topolvm-provisioner")? == "keep", "{plan:#}");
    let answer = run(fixture, &["install", "--adopt", "--diff"])?;
    let label = r#"+ metadata.labels: {"app.kubernetes.io/managed-by":"kubectl-topolvm"}"#;
    ensure!(answer.is_success && answer.text.contains(label), "{answer:?}");
    Objects::list(fixture)?.ensure_same(&before)
}

fn check_refusals(fixture: &Fixture) -> Result<()> {
    apply_snapshot_crds(&fixture.cluster)?;
    fixture.kubectl(&["create", "serviceaccount", "installer"])?;
    let token = fixture.kubectl(&["create", "token", "installer", "--duration=1h"])?;
    let kubeconfig = fixture.cluster.directory().join("installer.kubeconfig");
    fixture.cluster.write_kubeconfig(&kubeconfig, &Credential::Token(token.trim()))?;
    let rule =
        json!({"apiGroups": ["", "storage.k8s.io"], "resources": ["configmaps", "csidrivers"], "verbs": ["get"]});
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "installer"},
        "rules": [rule],
    }))?;
    fixture.kubectl(&[
        "create",
        "clusterrolebinding",
        "installer",
        "--clusterrole=installer",
        "--serviceaccount=default:installer",
    ])?;
    let before = Objects::list(fixture)?;

    // The fixture's driver was not applied by the plugin
    let answer = run(fixture, &["install"])?;
    let words = "the CSIDriver topolvm.io already exists and was not created by this command";
    ensure!(!answer.is_success && answer.errors.contains(words), "{answer:?}");
    ensure!(answer.errors.contains("docs/switching.md") && answer.errors.contains("nothing was changed"), "{answer:?}");
    // Nothing to upgrade or remove either
    let answer = run(fixture, &["upgrade"])?;
    ensure!(!answer.is_success && answer.errors.contains("not installed by this command"), "{answer:?}");
    let answer = run(fixture, &["uninstall"])?;
    ensure!(!answer.is_success && answer.errors.contains("remove it the way it was installed"), "{answer:?}");

    let answer = plugin::run(&fixture.cluster, &kubeconfig, &["install", "--adopt"])?;
    for right in ["create namespaces", "patch daemonsets.apps in the namespace topolvm-system", "list nodes"] {
        ensure!(answer.errors.contains(&format!("you may not {right}; run the command as")), "{right}: {answer:?}");
    }
    ensure!(!answer.is_success, "{answer:?}");

    let answer = run(fixture, &["install", "--adopt", "--scheduling=extender", "--certificates=cert-manager"])?;
    let words = "does not serve cert-manager.io/v1; install cert-manager first";
    ensure!(!answer.is_success && answer.errors.contains(words), "{answer:?}");

    Objects::list(fixture)?.ensure_same(&before)?;
    fixture.kubectl(&["delete", "clusterrolebinding/installer", "clusterrole/installer"])?;
    fixture.kubectl(&["delete", "serviceaccount", "installer"]).map(drop)
}

/// Creates the ConfigMap with the record that `install` leaves for later commands.
fn create_record(fixture: &Fixture) -> Result<()> {
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "name": "topolvm.io"});
    let record = json!({
        "version": "0.1.0", "options": {}, "objects": [driver], "hasMadeNamespace": false, "isRemoved": false,
    });
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "topolvm-installation", "namespace": "topolvm-system",
            "labels": {"app.kubernetes.io/managed-by": "kubectl-topolvm"},
        },
        "data": {"installation.json": record.to_string()},
    }))
}

fn uninstall_in_use(fixture: &Fixture) -> Result<()> {
    create_record(fixture)?;
    fixture.create_node("used")?;
    fixture.create_volume("used", "used")?;
    fixture.create_claim("waits", &json!({}), &[])?;
    let before = Objects::list(fixture)?;
    let answer = run(fixture, &["uninstall"]);
    let same = Objects::list(fixture).and_then(|after| after.ensure_same(&before));
    let plan = run(fixture, &["uninstall", "--keep-volumes", "--dry-run"]);
    fixture.kubectl(&["delete", "pvc", "waits", "--timeout=180s"])?;
    fixture.kubectl(&["delete", LV, "used", "--wait=false"])?;
    fixture.kubectl(&["patch", LV, "used", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    fixture.kubectl(&["delete", "node", "used", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "configmap", "topolvm-installation", "-n", "topolvm-system"])?;
    let (answer, plan) = (answer?, plan?);
    ensure!(!answer.is_success, "{answer:?}");
    for words in ["LogicalVolume used of node used", "PersistentVolumeClaim default/waits", "--keep-volumes"] {
        ensure!(answer.errors.contains(words), "{words}: {answer:?}");
    }
    // The driver was not installed by the plugin in this cluster, and is unchanged
    ensure!(plan.is_success && !plan.text.contains("CSIDriver"), "{plan:?}");
    same
}
