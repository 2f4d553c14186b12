//! `kubectl topolvm doctor` against a real API server: it names each fault and nothing else, and rights that its user
//! lacks.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use system_tests::plugin;
use testbed::assets;
use testbed::kubeconfig::Credential;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{CONTROLLER, start_controller};
use topolvm_api::{ApiFlavor, SELECTED_NODE, crd};

use crate::Body;
use crate::fixture::{Fixture, GRACE, spec};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("doctor_names_each_injected_fault_and_no_other", find_faults),
    ("doctor_names_the_rights_that_its_user_lacks", run_without_rights),
];

pub(crate) const NODE: &str = "examined";

/// Runs `body` with a Node as an agent and kubelet leave it.
pub(crate) fn with_node(fixture: &Fixture, body: impl FnOnce() -> Result<()>) -> Result<()> {
    // Nodes that another test may have left have no driver
    fixture.kubectl(&["delete", "nodes", "--all", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "crd", "logicalvolumes.topolvm.cybozu.com", "--ignore-not-found", "--timeout=180s"])?;
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": NODE, "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": NODE},
            "annotations": {"capacity.topolvm.io/00default": "10737418240", "capacity.topolvm.io/ssd": "10737418240"},
        },
    }))?;
    register_driver(fixture)?;
    let done = body();
    fixture.kubectl(&["delete", "csinode", NODE, "--ignore-not-found"])?;
    fixture.kubectl(&["delete", "node", NODE, "--timeout=180s"])?;
    done
}

fn register_driver(fixture: &Fixture) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
        "spec": {"drivers": [{"name": "topolvm.io", "nodeID": NODE, "topologyKeys": ["topology.topolvm.io/node"]}]},
    }))
}

fn label_node(fixture: &Fixture, value: &str) -> Result<()> {
    fixture.kubectl(&["label", "node", NODE, &format!("topology.topolvm.io/node={value}"), "--overwrite"]).map(drop)
}

/// A fault, with the check of `doctor` that finds it.
struct Fault {
    check: &'static str,
    result: &'static str,
    words: &'static str,
    inject: fn(&Fixture) -> Result<()>,
    repair: fn(&Fixture) -> Result<()>,
}

const FAULTS: [Fault; 15] = [
    Fault {
        check: "crd",
        result: "warn",
        words: "lacks selectable field .spec.nodeName",
        inject: |fixture| {
            let patch = r#"[{"op": "remove", "path": "/spec/versions/0/selectableFields"}]"#;
            fixture.kubectl(&["patch", "crd", "logicalvolumes.topolvm.io", "--type=json", "-p", patch]).map(drop)
        },
        repair: |fixture| fixture.apply(&serde_json::to_value(crd(ApiFlavor::TopoLvm))?),
    },
    Fault {
        check: "api-groups",
        result: "warn",
        words: "both API groups are installed",
        inject: |fixture| fixture.apply(&serde_json::to_value(crd(ApiFlavor::Legacy))?),
        repair: |fixture| delete_object(fixture, "crd", "logicalvolumes.topolvm.cybozu.com"),
    },
    Fault {
        check: "csidriver",
        result: "fail",
        words: "kube-scheduler does not consider free space",
        inject: |fixture| set_storage_capacity(fixture, false),
        repair: |fixture| set_storage_capacity(fixture, true),
    },
    Fault {
        check: "owner",
        result: "fail",
        words: "deployment/rival in the namespace default also runs topolvm-controller",
        inject: |fixture| {
            fixture.apply(&json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "rival", "namespace": "default"},
                "spec": {
                    "replicas": 0, "selector": {"matchLabels": {"app": "rival"}},
                    "template": {
                        "metadata": {"labels": {"app": "rival"}},
                        "spec": {"containers": [{"name": "topolvm-controller", "image": "rival"}]},
                    },
                },
            }))
        },
        repair: |fixture| delete_object(fixture, "deployment", "rival"),
    },
    Fault {
        check: "node-agents",
        result: "fail",
        words: "node examined: the driver is not registered in its CSINode",
        inject: |fixture| delete_object(fixture, "csinode", NODE),
        repair: register_driver,
    },
    Fault {
        check: "topology-labels",
        result: "fail",
        words: "Node examined has the label topology.topolvm.io/node=elsewhere",
        inject: |fixture| label_node(fixture, "elsewhere"),
        repair: |fixture| label_node(fixture, NODE),
    },
    Fault {
        check: "controller",
        result: "fail",
        words: "the Lease",
        inject: |fixture| fixture.cluster.stop(CONTROLLER, GRACE),
        repair: |fixture| start_controller(&fixture.cluster, &spec(&[])?),
    },
    Fault {
        check: "webhooks",
        result: "fail",
        words: "the Service topolvm-system/topolvm-controller, which does not exist",
        inject: |fixture| create_webhook(fixture, &exempt()),
        repair: |fixture| delete_object(fixture, "mutatingwebhookconfiguration", "doctored"),
    },
    Fault {
        check: "webhooks",
        result: "fail",
        words: "the Service topolvm-system/topolvm-controller of the webhooks has no ready endpoint",
        inject: |fixture| {
            fixture.apply(&service())?;
            create_webhook(fixture, &exempt())
        },
        repair: delete_webhook_and_service,
    },
    Fault {
        check: "webhooks",
        result: "fail",
        words: "pvc-hook.topolvm.io: the caBundle has expired on 2020-01-02",
        inject: |fixture| {
            create_service(fixture)?;
            create_webhook_with(fixture, &exempt(), &expired_authority()?)
        },
        repair: delete_webhook_and_service,
    },
    Fault {
        check: "webhook-exemptions",
        result: "warn",
        words: "applies to the namespace kube-system",
        inject: |fixture| {
            create_service(fixture)?;
            create_webhook(fixture, &json!({}))
        },
        repair: delete_webhook_and_service,
    },
    Fault {
        check: "storage-classes",
        result: "warn",
        words: "no node has the device class \"hdd\"",
        inject: |fixture| {
            fixture.apply(&json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "impossible"},
                "provisioner": "topolvm.io", "volumeBindingMode": "WaitForFirstConsumer",
                "parameters": {"topolvm.io/device-class": "hdd"},
            }))
        },
        repair: |fixture| delete_object(fixture, "storageclass", "impossible"),
    },
    Fault {
        check: "selected-nodes",
        result: "warn",
        words: "claim default/cordoned has the selected node examined, which is cordoned",
        inject: |fixture| {
            fixture.create_claim("cordoned", &json!({SELECTED_NODE: NODE}), &[])?;
            fixture.kubectl(&["cordon", NODE]).map(drop)
        },
        repair: |fixture| {
            fixture.kubectl(&["uncordon", NODE])?;
            delete_object(fixture, "pvc", "cordoned")
        },
    },
    Fault {
        check: "capacity-tracking",
        result: "warn",
        words: "of StorageClass removed on node examined: no StorageClass of this driver has this name",
        inject: |fixture| {
            fixture.apply(&json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
                "metadata": {"name": "doctored", "namespace": NAMESPACE}, "storageClassName": "removed",
                "capacity": "1Gi", "nodeTopology": {"matchLabels": {"topology.topolvm.io/node": NODE}},
            }))
        },
        repair: |fixture| fixture.kubectl(&["-n", NAMESPACE, "delete", "csistoragecapacity", "doctored"]).map(drop),
    },
    Fault {
        check: "rights",
        result: "fail",
        words: "topolvm-system/topolvm-node may not list nodes, patch nodes, watch nodes",
        inject: |fixture| {
            delete_object(fixture, "clusterrolebinding", BINDING).and_then(|()| bind_without_nodes(fixture))
        },
        repair: |fixture| {
            delete_object(fixture, "clusterrolebinding", "doctored")?;
            delete_object(fixture, "clusterrole", "doctored")?;
            bind_role(fixture, BINDING, "topolvm-system:node")
        },
    },
];

const BINDING: &str = "topolvm-system:topolvm-node";

fn delete_object(fixture: &Fixture, kind: &str, name: &str) -> Result<()> {
    fixture.kubectl(&["delete", kind, name, "--timeout=180s"]).map(drop)
}

fn set_storage_capacity(fixture: &Fixture, is_used: bool) -> Result<()> {
    let patch = json!({"spec": {"storageCapacity": is_used}}).to_string();
    fixture.kubectl(&["patch", "csidriver", "topolvm.io", "--type=merge", "-p", &patch]).map(drop)
}

/// Namespaces in which our webhooks take part.
fn exempt() -> Value {
    json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]},
    ]})
}

/// Creates a webhook configuration like ours that matches no object.
fn create_webhook(fixture: &Fixture, namespaces: &Value) -> Result<()> {
    create_webhook_with(fixture, namespaces, fixture.cluster.pki().authority())
}

fn create_webhook_with(fixture: &Fixture, namespaces: &Value, authority: &str) -> Result<()> {
    let bundle = ByteString(authority.as_bytes().to_vec());
    fixture.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "doctored"},
        "webhooks": [{
            "name": "pvc-hook.topolvm.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {
                "service": {"namespace": NAMESPACE, "name": "topolvm-controller", "path": "/pvc/mutate"},
                "caBundle": bundle,
            },
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["persistentvolumeclaims"]}],
            "namespaceSelector": namespaces, "objectSelector": {"matchLabels": {"no-object": "has-this"}},
            "failurePolicy": "Ignore",
        }],
    }))
}

/// Returns the certificate of an authority that was valid for a day.
fn expired_authority() -> Result<String> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.not_before = date_time_ymd(2020, 1, 1);
    parameters.not_after = date_time_ymd(2020, 1, 2);
    Ok(parameters.self_signed(&KeyPair::generate()?)?.pem())
}

/// Returns the Service of the webhooks, without a selector and so without an endpoint.
fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata_of_service(),
        "spec": {"ports": [{"name": "webhook", "port": 443}]},
    })
}

fn metadata_of_service() -> Value {
    json!({
        "name": "topolvm-controller", "namespace": NAMESPACE,
        "labels": {"kubernetes.io/service-name": "topolvm-controller"},
    })
}

/// Creates the Service with a ready endpoint.
fn create_service(fixture: &Fixture) -> Result<()> {
    fixture.apply(&service())?;
    fixture.apply(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata_of_service(),
        "addressType": "IPv4", "ports": [{"name": "webhook", "port": 9443, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": true}}],
    }))
}

fn delete_webhook_and_service(fixture: &Fixture) -> Result<()> {
    delete_object(fixture, "mutatingwebhookconfiguration", "doctored")?;
    let delete = ["-n", NAMESPACE, "delete", "service,endpointslice", "topolvm-controller", "--ignore-not-found"];
    fixture.kubectl(&delete).map(drop)
}

/// Applies the rights of the agents without those for Nodes.
fn bind_without_nodes(fixture: &Fixture) -> Result<()> {
    let role: Value =
        serde_json::from_str(&fixture.kubectl(&["get", "clusterrole", "topolvm-system:node", "-o", "json"])?)?;
    let mut rules = role["rules"].as_array().cloned().context("a role without rules")?;
    rules.retain(|rule| rule["resources"] != json!(["nodes"]));
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "doctored"},
            "rules": rules,
    }))?;
    bind_role(fixture, "doctored", "doctored")
}

fn bind_role(fixture: &Fixture, name: &str, role: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "topolvm-node", "namespace": "topolvm-system"}],
    }))
}

fn find_faults(fixture: &Fixture) -> Result<()> {
    with_node(fixture, || {
        wait_until_healthy(fixture)?;
        // The API server of the oldest Kubernetes drops the field that the first fault removes
        let not_there = usize::from(assets::is_oldest_kubernetes());
        for fault in FAULTS.iter().skip(not_there) {
            (fault.inject)(fixture)?;
            let named = wait_until_named(fixture, fault);
            (fault.repair)(fixture)?;
            named.with_context(|| format!("the fault of {}", fault.check))?;
            wait_until_healthy(fixture).with_context(|| format!("after {} was repaired", fault.check))?;
        }
        Ok(())
    })
}

/// Returns the checks of a report that are not ok, without the one that is unknown: the agent that would have metrics
/// is not a pod.
fn find_bad(report: &Value) -> Result<Vec<&Value>> {
    let checks = report["checks"].as_array().context("a report without checks")?;
    ensure!(checks.len() == 25, "doctor says: {report:#}");
    let storage = checks.iter().find(|check| check["name"] == "storage").context("storage is not checked")?;
    let words = "no metrics of pods report the volume groups and thin pools of node examined";
    let has_driver = !checks.iter().any(|check| check["name"] == "node-agents" && check["result"] == "fail");
    let is_unknown = storage["result"] == "unknown" && storage["findings"][0]["found"] == words;
    ensure!(is_unknown == has_driver, "without metrics of the storage doctor says {storage:#}");
    Ok(checks.iter().filter(|check| check["result"] != "ok" && check["name"] != "storage").collect())
}

/// Waits until all checks of `doctor` are ok, except the one that is unknown.
fn wait_until_healthy(fixture: &Fixture) -> Result<()> {
    fixture.cluster.ready("apiserver", || {
        let report = plugin::json(&fixture.cluster, &["doctor"])?;
        let bad = find_bad(&report)?;
        ensure!(bad.is_empty() && report["result"] == "unknown", "doctor says: {bad:#?}");
        Ok(())
    })?;
    let answer = plugin::run(&fixture.cluster, &fixture.cluster.inner_kubeconfig(), &["doctor"])?;
    ensure!(answer.is_success && answer.text.ends_with("24 ok, 0 warn, 0 fail, 1 unknown\n"), "{answer:?}");
    Ok(())
}

/// Waits until `doctor` names the fault, with a remedy, and no other.
fn wait_until_named(fixture: &Fixture, fault: &Fault) -> Result<()> {
    fixture.cluster.ready("apiserver", || {
        let report = plugin::json(&fixture.cluster, &["doctor"])?;
        let bad = find_bad(&report)?;
        ensure!(bad.len() == 1 && bad[0]["name"] == fault.check, "doctor names {bad:#?}");
        let mut findings = bad[0]["findings"].as_array().into_iter().flatten();
        let is_named = findings.any(|finding| {
            finding["result"] == fault.result
                && finding["found"].as_str().is_some_and(|found| found.contains(fault.words))
                && finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty())
        });
        ensure!(is_named, "doctor says {:#}", bad[0]);
        Ok(())
    })?;
    let answer = plugin::run(&fixture.cluster, &fixture.cluster.inner_kubeconfig(), &["doctor"])?;
    ensure!(answer.is_success == (fault.result != "fail"), "the exit status is wrong: {answer:?}");
    ensure!(answer.text.contains(fault.words), "people do not read it: {answer:?}");
    Ok(())
}

fn run_without_rights(fixture: &Fixture) -> Result<()> {
    fixture.kubectl(&["create", "serviceaccount", "visitor"])?;
    let token = fixture.kubectl(&["create", "token", "visitor", "--duration=1h"])?;
    let kubeconfig = fixture.cluster.directory().join("visitor.kubeconfig");
    fixture.cluster.write_kubeconfig(&kubeconfig, &Credential::Token(token.trim()))?;
    let answer = plugin::run(&fixture.cluster, &kubeconfig, &["doctor", "-o", "json"])?;
    ensure!(answer.is_success, "what is unknown has not failed: {answer:?}");
    let report: Value = serde_json::from_str(&answer.text)?;
    for (check, right) in [
        ("crd", "you may not get customresourcedefinitions.apiextensions.k8s.io"),
        ("node-agents", "you may not list nodes"),
        ("controller", "you may not list deployments.apps"),
        ("rights", "you may not create subjectaccessreviews.authorization.k8s.io"),
    ] {
        let mut checks = report["checks"].as_array().into_iter().flatten();
        let answer = checks.find(|answer| answer["name"] == check).context("a check is missing")?;
        let finding = &answer["findings"][0];
        ensure!(answer["result"] == "unknown" && finding["found"] == right, "{check}: {answer:#}");
    }
    // Commands that fail without a right name it too
    let answer = plugin::run(&fixture.cluster, &kubeconfig, &["status"])?;
    ensure!(!answer.is_success && answer.errors.contains("you may not list"), "{answer:?}");
    Ok(())
}
