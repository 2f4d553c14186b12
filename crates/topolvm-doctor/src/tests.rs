//! A sound installation, and each fault in it.

mod capacity;
mod pods;
mod pruning;
mod settings;
mod volumes;

use jiff::Timestamp;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor::{Legacy, TopoLvm};
use topolvm_api::{ApiFlavor, crd};

use crate::webhooks::selects;
use crate::{
    Backend, CsiPersistentVolume, Facts, Metrics, Outcome, ReadError, Report, Right, Role, Sample, Workload, examine,
};

/// 2026-01-01T01:00:00Z
const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn persistent_volume(value: &Value) -> CsiPersistentVolume {
    CsiPersistentVolume::new(TopoLvm, of(value.clone())).unwrap()
}

fn established(flavor: ApiFlavor) -> Value {
    let mut definition = serde_json::to_value(crd(flavor)).unwrap();
    definition["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    definition
}

type Date = (i32, u8, u8);

fn certificate(not_after: Date) -> String {
    certificate_from((2020, 1, 1), not_after)
}

fn certificate_from(not_before: Date, not_after: Date) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["topolvm-controller.topolvm-system.svc".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(not_before.0, not_before.1, not_before.2);
    params.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
    params.self_signed(&key).unwrap().pem()
}

fn configuration(bundle: &str, selector: &Value) -> Value {
    json!({"metadata": {"name": "topolvm-hook"}, "webhooks": [{
        "name": "pod-hook.topolvm.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail",
        "namespaceSelector": selector,
        "clientConfig": {
            "service": {"namespace": "topolvm-system", "name": "topolvm-controller", "path": "/pod/mutate"},
            "caBundle": k8s_openapi::ByteString(bundle.as_bytes().to_vec()),
        },
    }]})
}

fn lease(namespace: &str, name: &str, renewed: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": renewed},
    })
}

fn workload(role: Role, namespace: &str, ready: i32) -> Workload {
    let name = format!("deployment/{}", role.program());
    let (account, namespace) = (role.program().to_owned(), namespace.to_owned());
    Workload { role, name, namespace, wanted: 2, ready, account, containers: Vec::new() }
}

fn class(parameters: &Value, mode: &str) -> Value {
    json!({
        "metadata": {"name": "fast"}, "provisioner": "topolvm.io", "parameters": parameters, "volumeBindingMode": mode,
    })
}

fn sound() -> Facts {
    Facts {
        version: Ok((1, 36, "v1.36.0".to_owned())),
        definitions: Ok(vec![of(established(TopoLvm))]),
        drivers: Ok(vec![of(json!({
            "metadata": {"name": "topolvm.io"},
            "spec": {
                "attachRequired": false, "podInfoOnMount": true, "storageCapacity": true,
                "volumeLifecycleModes": ["Persistent"],
            },
        }))]),
        csi_nodes: Ok(vec![of(json!({
            "metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "topolvm.io", "nodeID": "n1"}]},
        }))]),
        nodes: Ok(vec![
            of(json!({"metadata": {
                "name": "n1", "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": "n1"},
                "annotations": {"capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "5"},
            }})),
            of(json!({"metadata": {"name": "without-storage"}})),
        ]),
        workloads: Ok(vec![workload(Role::Controller, "topolvm-system", 2), workload(Role::Node, "topolvm-system", 2)]),
        leases: Ok(vec![of(lease("topolvm-system", "topolvm", "2026-01-01T00:59:55.000000Z"))]),
        provisioner_leases: Ok(vec![of(lease("topolvm-system", "topolvm-io", "2026-01-01T00:59:55.000000Z"))]),
        classes: Ok(vec![of(class(&json!({"topolvm.io/device-class": "ssd"}), "WaitForFirstConsumer"))]),
        namespaces: Ok(["kube-system", "topolvm-system"]
            .map(|name| of(json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}})))
            .into()),
        rights: Ok(vec![right(true)]),
        metrics: vec![metrics("n1", "")],
        ..Facts::empty(TopoLvm, "topolvm-system", NOW)
    }
}

/// Returns the page of metrics that a pod of a node has.
fn metrics(node: &str, page: &str) -> Metrics {
    Metrics { node: node.to_owned(), pod: "p".to_owned(), samples: Ok(Sample::parse_all(page)) }
}

fn right(is_allowed: bool) -> Right {
    let what = "patch nodes".to_owned();
    Right { account: "topolvm-node".to_owned(), what, is_allowed }
}

/// With the webhook of the extender, whose certificate ends then.
fn extender(facts: &mut Facts, not_after: (i32, u8, u8), selector: &Value, ready: Option<usize>) {
    facts.drivers.as_mut().unwrap()[0].spec.storage_capacity = Some(false);
    facts.webhooks = Ok(vec![of(configuration(&certificate(not_after), selector))]);
    let (namespace, name) = ("topolvm-system".to_owned(), "topolvm-controller".to_owned());
    facts.backends = vec![Backend { namespace, name, ready: Ok(ready) }];
}

fn exempt() -> Value {
    json!({"matchExpressions": [
        {"key": "topolvm.io/webhook", "operator": "NotIn", "values": ["ignore"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "topolvm-system"]},
    ]})
}

#[test]
fn a_sound_installation_has_nothing_wrong() {
    assert_sound(&sound());
    let mut facts = sound();
    extender(&mut facts, (2027, 1, 1), &exempt(), Some(1));
    assert_sound(&facts);
}

fn assert_sound(facts: &Facts) {
    let report = examine(facts);
    assert_eq!(report.result, Outcome::Ok, "{:#?}", faults(&report));
    assert_eq!(report.checks.len(), 25);
}

/// Sets the topology label of the node n1.
fn label_first_node(facts: &mut Facts, value: &str) {
    let labels = [("topology.topolvm.io/node".to_owned(), value.to_owned())];
    facts.nodes.as_mut().unwrap()[0].metadata.labels = Some(labels.into());
}

/// Returns the checks that are not ok.
fn faults(report: &Report) -> Vec<&crate::CheckResult> {
    report.checks.iter().filter(|check| check.result != Outcome::Ok).collect()
}

/// Asserts that one check alone finds something: these words, with these of its remedy or one of its commands.
fn assert_named(facts: &Facts, check: &str, result: Outcome, found: &str, remedy: &str) {
    let report = examine(facts);
    let faults = faults(&report);
    let names: Vec<_> = faults.iter().map(|fault| fault.name).collect();
    assert_eq!(names, [check], "{faults:#?}");
    assert_eq!(faults[0].result, result, "{faults:#?}");
    assert_eq!(report.has_failed(), result == Outcome::Fail);
    let named = faults[0].findings.iter().any(|finding| {
        let fixes = |text: &String| text.contains(remedy);
        finding.found.contains(found) && (finding.remedy.iter().any(fixes) || finding.commands.iter().any(fixes))
    });
    assert!(named, "{faults:#?}");
    assert!(!faults[0].explanation.is_empty());
}

#[test]
fn crd_without_selectable_fields_is_a_fault_from_1_31_on() {
    let found_in = |minor: u32| {
        let mut definition = established(TopoLvm);
        definition["spec"]["versions"][0].as_object_mut().unwrap().remove("selectableFields");
        let version = Ok((1, minor, format!("v1.{minor}.0")));
        let facts = Facts { version, definitions: Ok(vec![of(definition)]), ..sound() };
        faults(&examine(&facts)).iter().map(|fault| fault.name).collect::<Vec<_>>()
    };
    assert_eq!(found_in(30), [""; 0]);
    assert_eq!(found_in(31), ["crd"]);
}

#[rstest]
#[case("api-server", Outcome::Fail, "v1.29.1", "upgrade Kubernetes", |facts: &mut Facts| facts.version = Ok((1, 29,
    "v1.29.1".to_owned())))]
#[case("crd", Outcome::Fail, "is not defined", "base/crd.yaml", |facts: &mut Facts| {
    facts.definitions = Ok(vec![of(established(Legacy))]);
})]
#[case("crd", Outcome::Warn, "lacks status.conditions, selectable field .spec.nodeName", "base/crd.yaml",
    |facts: &mut Facts| {
    let mut other = established(TopoLvm);
    let version = &mut other["spec"]["versions"][0];
    version["selectableFields"] = json!([{"jsonPath": ".status.volumeID"}]);
    let status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"].as_object_mut().unwrap();
    status.remove("conditions");
    facts.definitions = Ok(vec![of(other)]);
})]
#[case("crd", Outcome::Fail, "not served", "describe crd", |facts: &mut Facts| {
    facts.definitions.as_mut().unwrap()[0].status = None;
})]
#[case("api-groups", Outcome::Warn, "both API groups", "docs/switching.md", |facts: &mut Facts| {
    facts.definitions.as_mut().unwrap().push(of(established(Legacy)));
})]
#[case("csidriver", Outcome::Fail, "CSIDriver topolvm.io does not exist", "csidriver.yaml",
    |facts: &mut Facts| facts.drivers = Ok(Vec::new()))]
#[case("csidriver", Outcome::Fail, "attachRequired is not false", "delete csidriver", |facts: &mut Facts| {
    facts.drivers.as_mut().unwrap()[0].spec.attach_required = None;
})]
#[case("csidriver", Outcome::Fail, "storageCapacity is not true", "kubectl patch csidriver", |facts: &mut Facts| {
    facts.drivers.as_mut().unwrap()[0].spec.storage_capacity = Some(false);
})]
#[case("csidriver", Outcome::Fail, "Persistent, Ephemeral", "delete csidriver", |facts: &mut Facts| {
    let modes = ["Persistent", "Ephemeral"].map(str::to_owned).to_vec();
    facts.drivers.as_mut().unwrap()[0].spec.volume_lifecycle_modes = Some(modes);
})]
#[case("owner", Outcome::Fail, "deployment/topolvm-controller in the namespace other", "remove it",
    |facts: &mut Facts| {
    facts.workloads.as_mut().unwrap().push(workload(Role::Controller, "other", 1));
})]
#[case("owner", Outcome::Fail, "Helm release in the namespace other", "remove that release", |facts: &mut Facts| {
    let annotations = [("meta.helm.sh/release-namespace".to_owned(), "other".to_owned())];
    facts.drivers.as_mut().unwrap()[0].metadata.annotations = Some(annotations.into());
})]
#[case("owner", Outcome::Fail, "csi-provisioner in the namespace other", "remove it", |facts: &mut Facts| {
    facts.provisioner_leases = Ok(vec![of(lease("other", "topolvm-io", "2026-01-01T00:59:55.000000Z"))]);
})]
#[case("node-agents", Outcome::Fail, "node n1: the driver is not registered", "lvmd run on node n1",
    |facts: &mut Facts| {
    facts.csi_nodes = Ok(Vec::new());
})]
#[case("node-agents", Outcome::Fail, "node n1: it publishes no free space", "lvmd run on node n1", |facts: &mut Facts| {
    facts.nodes.as_mut().unwrap()[0].metadata.annotations = None;
})]
#[case("node-agents", Outcome::Fail, "n1: its Node lacks the finalizer", "lvmd run on node n1", |facts: &mut Facts| {
    facts.nodes.as_mut().unwrap()[0].metadata.finalizers = None;
})]
#[case("topology-labels", Outcome::Fail, "Node n1 has the label topology.topolvm.io/node=n2",
    "kubectl label node n1 topology.topolvm.io/node=n1 --overwrite", |facts: &mut Facts| label_first_node(facts, "n2"))]
#[case("topology-labels", Outcome::Fail, "Node n1 has no label topology.topolvm.io/node=n1",
    "kubectl label node n1 topology.topolvm.io/node=n1 --overwrite", |facts: &mut Facts| {
    facts.nodes.as_mut().unwrap()[0].metadata.labels = None;
})]
#[case("node-agents", Outcome::Fail, "1 of 2 pods are ready", "describe", |facts: &mut Facts| {
    facts.workloads = Ok(vec![workload(Role::Node, "topolvm-system", 1)]);
})]
#[case("node-agents", Outcome::Fail, "are ready; node n3: pod topolvm-system/topolvm-node-x has no node: 0/3",
    "describe", |facts: &mut Facts| {
    facts.workloads = Ok(vec![workload(Role::Node, "topolvm-system", 1)]);
    facts.pods = Ok(vec![of(json!({
        "metadata": {"name": "topolvm-node-x", "namespace": "topolvm-system"},
        "spec": {
            "containers": [{"name": "topolvm-node"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]},
            ]}}},
        },
        "status": {"conditions": [{
            "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: insufficient cpu",
        }]},
    }))]);
})]
#[case("node-agents", Outcome::Fail, "1 of 2 pods are ready; pods \"x\" is forbidden: exceeded quota", "describe",
    |facts: &mut Facts| {
    let mut set = workload(Role::Node, "topolvm-system", 1);
    set.name = "daemonset/topolvm-node".to_owned();
    facts.workloads = Ok(vec![set]);
    facts.creation_events = Ok(vec![of(json!({
        "metadata": {"name": "e", "namespace": "topolvm-system"}, "reason": "FailedCreate",
        "message": "pods \"x\" is forbidden: exceeded quota", "lastTimestamp": "2026-01-01T00:50:00Z",
        "involvedObject": {"kind": "DaemonSet", "name": "topolvm-node", "namespace": "topolvm-system"},
    }))]);
})]
#[case("node-agents", Outcome::Fail, "node n1: pod topolvm-system/lvmd-x, container lvmd: CrashLoopBackOff: back-off",
    "describe the pod", |facts: &mut Facts| {
    facts.pods = Ok(vec![of(json!({
        "metadata": {"name": "lvmd-x", "namespace": "topolvm-system"},
        "spec": {"nodeName": "n1", "containers": [{"name": "lvmd"}]},
        "status": {"containerStatuses": [{
            "name": "lvmd", "image": "", "imageID": "", "ready": false, "restartCount": 7,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        }]},
    }))]);
})]
#[case("node-agents", Outcome::Fail, "node n1: pod topolvm-system/lvmd-x is not ready: containers with unready status",
    "describe the pod", |facts: &mut Facts| {
    facts.pods = Ok(vec![of(json!({
        "metadata": {"name": "lvmd-x", "namespace": "topolvm-system"},
        "spec": {"nodeName": "n1", "containers": [{"name": "lvmd"}]},
        "status": {"conditions": [{
            "type": "Ready", "status": "False", "message": "containers with unready status: [lvmd]",
            "lastTransitionTime": "2026-01-01T00:50:00Z",
        }]},
    }))]);
})]
#[case("node-agents", Outcome::Warn, "no node has storage", "start topolvm-node", |facts: &mut Facts| {
    (facts.nodes, facts.csi_nodes) = (Ok(Vec::new()), Ok(Vec::new()));
})]
#[case("controller", Outcome::Fail, "the Lease topolvm does not exist", "start topolvm-controller",
    |facts: &mut Facts| facts.leases = Ok(Vec::new()))]
#[case("controller", Outcome::Fail, "has not renewed it for 600 s", "start topolvm-controller", |facts: &mut Facts| {
    facts.leases = Ok(vec![of(lease("topolvm-system", "topolvm", "2026-01-01T00:50:00.000000Z"))]);
})]
#[case("controller", Outcome::Fail, "no controller holds the Lease", "start topolvm-controller", |facts: &mut Facts| {
    facts.leases.as_mut().unwrap()[0].spec.as_mut().unwrap().holder_identity = Some(String::new());
})]
#[case("controller", Outcome::Warn, "1 of 2 replicas are ready", "describe", |facts: &mut Facts| {
    facts.workloads = Ok(vec![workload(Role::Controller, "topolvm-system", 1)]);
})]
#[case("webhooks", Outcome::Fail, "the caBundle has expired on 2025-01-01", "docs/webhooks.md", |facts: &mut Facts| {
    extender(facts, (2025, 1, 1), &exempt(), Some(1));
})]
#[case("webhooks", Outcome::Warn, "the caBundle expires on 2026-01-10", "docs/webhooks.md", |facts: &mut Facts| {
    extender(facts, (2026, 1, 10), &exempt(), Some(1));
})]
#[case("webhooks", Outcome::Fail, "which does not exist", "service.yaml", |facts: &mut Facts| {
    extender(facts, (2027, 1, 1), &exempt(), None);
})]
#[case("webhooks", Outcome::Fail, "has no ready endpoint", "--enable-webhooks", |facts: &mut Facts| {
    extender(facts, (2027, 1, 1), &exempt(), Some(0));
})]
#[case("webhook-exemptions", Outcome::Fail, "applies to the namespace kube-system", "topolvm.io/webhook=ignore",
    |facts: &mut Facts| {
    extender(facts, (2027, 1, 1), &json!({}), Some(1));
})]
#[case("storage-classes", Outcome::Fail, "the filesystem \"zfs\" is not supported", "recreate the StorageClass fast",
    |facts: &mut Facts| {
    facts.classes = Ok(vec![of(class(&json!({"csi.storage.k8s.io/fstype": "zfs"}), "WaitForFirstConsumer"))]);
})]
#[case("webhooks", Outcome::Fail, "is not valid before 2026-06-01", "NTP", |facts: &mut Facts| {
    extender(facts, (2027, 1, 1), &exempt(), Some(1));
    let future = certificate_from((2026, 6, 1), (2027, 6, 1));
    facts.webhooks = Ok(vec![of(configuration(&future, &exempt()))]);
})]
#[case("storage-classes", Outcome::Fail, "csi-provisioner rejects", "recreate the StorageClass fast",
    |facts: &mut Facts| {
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs", "fsType": "xfs", "topolvm.io/device-class": "ssd"});
    facts.classes = Ok(vec![of(class(&parameters, "WaitForFirstConsumer"))]);
})]
#[case("leftovers", Outcome::Fail, "topolvm-hook has pod-hook.topolvm.cybozu.com",
    "kubectl delete mutatingwebhookconfiguration topolvm-hook", |facts: &mut Facts| {
    let mut other = configuration(&certificate((2027, 1, 1)), &exempt());
    other["webhooks"][0]["name"] = json!("pod-hook.topolvm.cybozu.com");
    other["webhooks"][0]["clientConfig"]["service"]["namespace"] = json!("other");
    facts.webhooks = Ok(vec![of(other)]);
})]
#[case("storage-classes", Outcome::Warn, "no node has the device class \"hdd\"", "one of ssd", |facts: &mut Facts| {
    facts.classes = Ok(vec![of(class(&json!({"topolvm.io/device-class": "hdd"}), "WaitForFirstConsumer"))]);
})]
#[case("storage-classes", Outcome::Fail, "mkfs option", "recreate the StorageClass fast", |facts: &mut Facts| {
    facts.classes = Ok(vec![of(class(&json!({"topolvm.io/mkfs-options": "-F"}), "WaitForFirstConsumer"))]);
})]
#[case("storage-classes", Outcome::Warn, "\"topolvm.io/clas\" is unknown", "recreate the StorageClass fast",
    |facts: &mut Facts| {
    facts.classes = Ok(vec![of(class(&json!({"topolvm.io/clas": "x"}), "WaitForFirstConsumer"))]);
})]
#[case("storage-classes", Outcome::Warn, "bound before kube-scheduler", "WaitForFirstConsumer", |facts: &mut Facts| {
    facts.classes = Ok(vec![of(class(&json!({}), "Immediate"))]);
})]
#[case("storage-classes", Outcome::Warn, "no StorageClass", "storageclass.yaml",
    |facts: &mut Facts| facts.classes = Ok(Vec::new()))]
#[case("storage", Outcome::Fail, "node n1: a disk is missing", "kubectl get nodestorages n1", |facts: &mut Facts| {
    publish_storage_only(facts, &["a disk is missing"], 50);
})]
#[case("storage", Outcome::Fail, "node n1: topolvm-node cannot reach lvmd", "lvmd check-config", |facts: &mut Facts| {
    let mut object = node_storage(&[], 50);
    object["status"]["conditions"] = json!([{
        "type": "Ready", "status": "Unknown", "reason": "LvmdUnavailable", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    facts.metrics.clear();
    facts.node_storage = Ok(vec![of(object)]);
})]
#[case("storage", Outcome::Warn, "thin pool vg/pool: 80 % of data used", "extend the pool", |facts: &mut Facts| {
    publish_storage_only(facts, &[], 80);
})]
#[case("storage", Outcome::Fail, "thin pool vg/pool: 95 % of data used", "extend the pool", |facts: &mut Facts| {
    publish_storage_only(facts, &[], 95);
})]
#[case("rights", Outcome::Fail, "topolvm-system/topolvm-node may not patch nodes", "rbac.yaml", |facts: &mut Facts| {
    facts.rights = Ok(vec![right(false)]);
})]
fn each_fault_is_named_by_its_check_alone(
    #[case] check: &str,
    #[case] result: Outcome,
    #[case] found: &str,
    #[case] remedy: &str,
    #[case] fault: fn(&mut Facts),
) {
    let mut facts = sound();
    fault(&mut facts);
    assert_named(&facts, check, result, found, remedy);
}

/// Publishes this in the object of the node, and no metrics of its pods.
fn publish_storage_only(facts: &mut Facts, problems: &[&str], data_percent: u8) {
    facts.metrics.clear();
    facts.node_storage = Ok(vec![of(node_storage(problems, data_percent))]);
}

fn node_storage(problems: &[&str], data_percent: u8) -> Value {
    json!({"metadata": {"name": "n1"}, "status": {
        "problems": problems,
        "thinPools": [{"volumeGroup": "vg", "name": "pool", "dataPercent": data_percent, "metadataPercent": 1}],
    }})
}

#[test]
fn node_storage_is_checked_only_if_metrics_are_unreadable() {
    let mut facts = sound();
    facts.node_storage = Ok(vec![of(node_storage(&["a disk is missing"], 99))]);
    let of_pod = |pod: &str, samples| Metrics { node: "n1".to_owned(), pod: pod.to_owned(), samples };
    facts.metrics = vec![of_pod("topolvm-node", Ok(Vec::new())), of_pod("topolvm-lvmd", Ok(Vec::new()))];
    let storage = |facts: &Facts| examine(facts).checks.into_iter().find(|check| check.name == "storage").unwrap();
    assert_eq!(storage(&facts).result, Outcome::Ok);
    let refused = ReadError::Forbidden { verb: "get", resource: "pods/proxy".to_owned() };
    facts.metrics[1].samples = Err(refused);
    assert_eq!(storage(&facts).result, Outcome::Fail);
}

#[test]
fn selectors_are_read_as_the_api_server_reads_them() {
    let labels = [("a".to_owned(), "1".to_owned())].into();
    for (selector, expected) in [
        (json!({}), true),
        (json!({"matchLabels": {"a": "1"}}), true),
        (json!({"matchLabels": {"a": "2"}}), false),
        (json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}), true),
        (json!({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}), true),
        (json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}), false),
        (json!({"matchExpressions": [{"key": "b", "operator": "Exists"}]}), false),
    ] {
        assert_eq!(selects(&of(selector.clone()), &labels), expected, "{selector}");
    }
}
