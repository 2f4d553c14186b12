//! Applies the chart to a real API server: each of its sets of values is accepted, and a release of TopoLVM's chart is
//! upgraded in place to ours.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::chart;
use testbed::cluster::{Cluster, ClusterSpec};
use testbed::sidecars::NAMESPACE;
use testbed::suite;

/// Kinds that other products define.
const OF_OTHERS: [&str; 5] = ["Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ServiceMonitor"];

/// Objects of TopoLVM's chart 17.1.0 with the names of ours, with their immutable fields, and lvmd's.
const UPSTREAM: &str = r#"
{{- define "labels" }}{app.kubernetes.io/name: topolvm, app.kubernetes.io/instance: {{ .Release.Name }}{{ end }}
{{- define "pod" }}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: program, image: "upstream:1"}]}
{{- end }}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: logicalvolumes.topolvm.io}
spec:
  group: topolvm.io
  names: {kind: LogicalVolume, listKind: LogicalVolumeList, plural: logicalvolumes, singular: logicalvolume}
  scope: Cluster
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: topolvm.io}
spec: {attachRequired: false, podInfoOnMount: true, storageCapacity: true, volumeLifecycleModes: [Persistent]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: topolvm-provisioner}
provisioner: topolvm.io
parameters: {csi.storage.k8s.io/fstype: xfs}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: topolvm}
value: 1000000
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: topolvm-controller, namespace: {{ .Release.Namespace }}}
spec:
  replicas: 2
  selector: {matchLabels: {{ template "labels" . }}, app.kubernetes.io/component: controller}}
  template:
    metadata: {labels: {{ template "labels" . }}, app.kubernetes.io/component: controller}}
    {{- include "pod" . | indent 4 }}
{{- range $component := list "node" "lvmd" }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: topolvm-{{ $component }}{{ if eq $component "lvmd" }}-0{{ end }}
  namespace: {{ $.Release.Namespace }}
spec:
  selector: {matchLabels: {{ template "labels" $ }}, app.kubernetes.io/component: {{ $component }}}}
  template:
    metadata: {labels: {{ template "labels" $ }}, app.kubernetes.io/component: {{ $component }}}}
    {{- include "pod" $ | indent 4 }}
{{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: topolvm-controller, namespace: {{ .Release.Namespace }}}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {{ template "labels" . }}, app.kubernetes.io/component: controller}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "{{ .Release.Namespace }}:controller"}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, update, watch]}
"#;

/// Objects that keep their UID.
const KEPT: [&str; 6] = [
    "customresourcedefinition/logicalvolumes.topolvm.io",
    "csidriver/topolvm.io",
    "storageclass/topolvm-provisioner",
    "deployment/topolvm-controller",
    "daemonset/topolvm-node",
    "clusterrole/topolvm-system:controller",
];

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn(&Cluster, &Path) -> Result<()>| suite::test(name, move || with_cluster(body));
    vec![
        test("each_set_of_values_of_the_chart_is_accepted_field_by_field", apply_all_values),
        test("helm_upgrade_from_topolvms_chart_works_and_rolls_back", upgrade_from_topolvm),
    ]
}

/// Runs a test with a control plane without the product, unlike the shared one.
fn with_cluster(body: fn(&Cluster, &Path) -> Result<()>) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("topolvm-chart-").tempdir_in("/var/tmp")?;
    let cluster = Cluster::up(&directory.path().join("c"), &ClusterSpec::default())?;
    let done = cluster.kubectl_ok(["create", "namespace", NAMESPACE]).and_then(|_| body(&cluster, directory.path()));
    cluster.down(None)?;
    done
}

fn apply_all_values(cluster: &Cluster, scratch: &Path) -> Result<()> {
    for entry in fs::read_dir(chart::directory().join("ci"))? {
        let values = entry?.path();
        let rendered = chart::render("topolvm", NAMESPACE, &["--values", &values.to_string_lossy()])?;
        let objects = serde_saphyr::from_multiple::<Option<Value>>(&rendered).context("no YAML")?;
        let ours = |object: &Value| object["kind"].as_str().is_some_and(|kind| !OF_OTHERS.contains(&kind));
        let items: Vec<Value> = objects.into_iter().flatten().filter(ours).collect();
        ensure!(items.len() > 20, "{}: {} objects", values.display(), items.len());
        let file = scratch.join("list.json");
        fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
        // Server-side, where an unknown field is an error
        let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f"];
        let apply = apply.iter().map(Path::new).chain([file.as_path()]);
        cluster.kubectl_ok(apply).with_context(|| values.display().to_string())?;
    }
    Ok(())
}

fn upgrade_from_topolvm(cluster: &Cluster, scratch: &Path) -> Result<()> {
    let upstream = scratch.join("upstream");
    fs::create_dir_all(upstream.join("templates"))?;
    fs::write(upstream.join("Chart.yaml"), "{apiVersion: v2, name: topolvm, version: 17.1.0}")?;
    fs::write(upstream.join("templates/all.yaml"), UPSTREAM)?;
    let (upstream, ours) = (upstream.to_string_lossy().into_owned(), chart::directory());
    let run = |arguments: &[&str]| chart::run(cluster, NAMESPACE, arguments).map(drop);
    run(&["install", "topolvm", &upstream])?;
    cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"])?;
    let volume = json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "volume"},
        "spec": {"name": "volume", "nodeName": "node1", "size": "1Gi"},
    });
    // Where a definition was Established, each kind of request finds it some moments later
    cluster.ready("apiserver", || cluster.apply(&volume.to_string()).map(drop))?;
    let before = ids(cluster)?;
    run(&["upgrade", "topolvm", &ours.to_string_lossy()])?;
    ensure!(ids(cluster)? == before, "some of {KEPT:?} were recreated");
    cluster.kubectl_ok(["get", "logicalvolumes.topolvm.io", "volume"])?;
    let daemon_sets = cluster.kubectl_ok(["get", "daemonsets", "-n", NAMESPACE, "-o", "name"])?;
    let expected = "daemonset.apps/topolvm-lvmd\ndaemonset.apps/topolvm-node\n";
    ensure!(daemon_sets == expected, "{daemon_sets}");
    let image = "jsonpath={.spec.template.spec.containers[*].name}";
    let containers = cluster.kubectl_ok(["get", "daemonset", "topolvm-node", "-n", NAMESPACE, "-o", image])?;
    ensure!(containers == "topolvm-node", "containers of TopoLVM are left: {containers}");

    run(&["rollback", "topolvm", "1"])?;
    ensure!(ids(cluster)? == before, "the rollback recreated some of {KEPT:?}");
    run(&["upgrade", "topolvm", &ours.to_string_lossy()])?;
    run(&["uninstall", "topolvm"])?;
    cluster.kubectl_ok(["get", "logicalvolumes.topolvm.io", "volume"])?;
    cluster.kubectl_ok(["delete", "logicalvolumes.topolvm.io", "volume", "--timeout=180s"])?;
    cluster.kubectl_ok(["delete", "crd", "logicalvolumes.topolvm.io", "--timeout=180s"])?;
    Ok(())
}

fn ids(cluster: &Cluster) -> Result<Vec<String>> {
    let id = |name: &&str| cluster.kubectl_ok(["get", *name, "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"]);
    KEPT.iter().map(id).collect()
}
