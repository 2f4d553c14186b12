//! Faults of scheduling: the extender and its resource, device classes, and pods past kube-scheduler.

use serde_json::{Value, json};

use super::{assert_named, assert_sound, class, exempt, extender, faults, metrics, of, sound};
use crate::{Facts, Outcome, examine, unproven_reason};

/// A pod of a StatefulSet without a node, with a claim, the marker, and this message of kube-scheduler.
fn waiting_pod(message: &str) -> Value {
    json!({
        "metadata": {
            "name": "vault-0", "namespace": "vault",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "vault", "uid": "u", "controller": true},
            ],
        },
        "spec": {
            "containers": [{"name": "a", "resources": {
                "requests": {"topolvm.io/capacity": "1"}, "limits": {"topolvm.io/capacity": "1"},
            }}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-vault-0"}}],
        },
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message},
        ]},
    })
}

/// The command that recreates pods that wait for the resource.
const RESTART: &str = "kubectl topolvm restart-pending -n vault";

const INSUFFICIENT: &str = "0/2 nodes are available: 2 Insufficient topolvm.io/capacity. preemption: 0/2 nodes are \
    available: 2 No preemption victims found for incoming pod.";

pub(super) fn claim(more: &Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": "data-vault-0", "namespace": "vault"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    });
    claim["metadata"]["annotations"] = more.clone();
    claim
}

fn with_extender() -> Facts {
    let mut facts = sound();
    extender(&mut facts, (2027, 1, 1), &exempt(), Some(1));
    facts
}

#[test]
fn uncalled_extender_is_detected_by_its_waiting_pods() {
    let mut facts = with_extender();
    facts.pods = Ok(vec![of(waiting_pod(INSUFFICIENT))]);
    let report = examine(&facts);
    let found = faults(&report);
    let names: Vec<_> = found.iter().map(|fault| fault.name).collect();
    assert_eq!(names, ["extender-called", "blocked-pods"], "{found:#?}");
    let called = &found[0].findings[0];
    assert!(called.found.contains("vault/vault-0 (statefulset/vault)"), "{called:?}");
    let remove = r#"[{"op":"test","path":"/webhooks/0/name","value":"pod-hook.topolvm.io"},"#.to_owned()
        + r#"{"op":"remove","path":"/webhooks/0"}]"#;
    let expected = [
        format!("kubectl patch mutatingwebhookconfiguration topolvm-hook --type=json -p '{remove}'"),
        r#"kubectl patch csidriver topolvm.io --type=json -p '[{"op":"add","path":"/spec/storageCapacity","#.to_owned()
            + r#""value":true}]'"#,
    ];
    assert_eq!(called.commands, expected);
    assert_eq!(found[1].findings[0].commands, ["kubectl topolvm restart-pending -n vault"]);
    assert!(found[1].findings[0].found.contains("wait only for topolvm.io/capacity"), "{found:#?}");
}

#[test]
fn extender_that_does_not_answer_is_reported() {
    let mut facts = with_extender();
    let message = r#"running "x" extender: Post "http://127.0.0.1:9251/predicate": connection refused"#;
    facts.pods = Ok(vec![of(waiting_pod(message))]);
    assert_named(&facts, "extender-called", Outcome::Fail, "does not answer kube-scheduler", "start topolvm-scheduler");
    // One that is called and has no room
    facts.pods = Ok(vec![of(waiting_pod("0/2 nodes are available: 2 out of VG free space."))]);
    assert_sound(&facts);
}

#[test]
fn marked_pods_are_named_in_capacity_mode_blocked_or_not() {
    let mut facts = sound();
    facts.pods = Ok(vec![of(waiting_pod(INSUFFICIENT))]);
    assert_named(&facts, "blocked-pods", Outcome::Fail, "vault/vault-0 (statefulset/vault)", RESTART);
    let mut pod = waiting_pod("");
    pod["status"] = json!({"phase": "Running"});
    pod["spec"]["nodeName"] = json!("n1");
    facts.pods = Ok(vec![of(pod.clone())]);
    let restart = "kubectl -n vault rollout restart statefulset/vault";
    assert_named(&facts, "marker-pods", Outcome::Warn, "vault/vault-0", restart);
    // With the extender these are as they should be
    let mut facts = with_extender();
    facts.pods = Ok(vec![of(pod)]);
    assert_sound(&facts);
}

#[test]
fn scheduling_mode_flag_decides_and_is_patched_in_place() {
    let mut facts = with_extender();
    facts.pods = Ok(vec![of(waiting_pod(INSUFFICIENT))]);
    set_arguments(&mut facts, &["-v", "--scheduling-mode=extender", "--assume-extender", "--enable-webhooks"]);
    let report = examine(&facts);
    let commands = &faults(&report)[0].findings[0].commands;
    let begin = "kubectl -n topolvm-system patch deployment topolvm-controller --type=json -p ";
    let after = r#""value":["-v","--scheduling-mode=capacity","--enable-webhooks"]}]"#;
    assert!(commands[0].starts_with(begin) && commands[0].contains(after), "{commands:#?}");
    let wait = "kubectl -n topolvm-system rollout status deployment/topolvm-controller --timeout=5m";
    assert_eq!(commands.last().map(String::as_str), Some(wait));
    // What marks pods until it ends
    let running = json!({
        "metadata": {"name": "topolvm-controller-1", "namespace": "topolvm-system"},
        "spec": {"containers": [{"name": "topolvm-controller"}], "nodeName": "n1"}, "status": {"phase": "Running"},
    });
    facts.pods.as_mut().unwrap().push(of(running));
    let report = examine(&facts);
    let commands = &faults(&report)[0].findings[0].commands;
    let gone = "kubectl -n topolvm-system wait --for=delete pod/topolvm-controller-1 --timeout=5m";
    assert_eq!(commands[commands.len() - 2..], [wait, gone]);
    set_arguments(&mut facts, &["--scheduling-mode=capacity", "--enable-webhooks"]);
    facts.drivers.as_mut().unwrap()[0].spec.storage_capacity = Some(true);
    assert_named(&facts, "blocked-pods", Outcome::Fail, "vault/vault-0", RESTART);
}

/// Gives topolvm-controller these arguments.
fn set_arguments(facts: &mut Facts, arguments: &[&str]) {
    let container = json!({"name": "topolvm-controller", "args": arguments});
    facts.workloads.as_mut().unwrap()[0].containers = vec![of(container)];
}

#[test]
fn unproven_extender_is_a_fault_unless_it_is_assumed() {
    let mut facts = with_extender();
    facts.unproven = Ok(Some("kube-scheduler does not call topolvm-scheduler: Insufficient".to_owned()));
    // Without the flag the controllers do not look, and what a ConfigMap says is from before
    assert_sound(&facts);
    set_arguments(&mut facts, &["--scheduling-mode=extender", "--assume-extender"]);
    assert_sound(&facts);
    set_arguments(&mut facts, &["--scheduling-mode", "extender"]);
    let words = "no probe has confirmed that kube-scheduler calls the extender, so pods are scheduled without regard \
        to free space: kube-scheduler does not call topolvm-scheduler: Insufficient";
    assert_named(&facts, "extender-called", Outcome::Fail, words, "kubectl patch csidriver topolvm.io");
    facts.unproven = Ok(None);
    assert_sound(&facts);
}

#[test]
fn what_the_controllers_keep_about_the_extender_is_understood() {
    let reason = |data: Value| unproven_reason(&of(json!({ "data": data })));
    assert_eq!(reason(json!({"extender-proven": "true", "reason": ""})), None);
    assert_eq!(reason(json!({"extender-proven": "false", "reason": "r"})), Some("r".to_owned()));
    assert_eq!(reason(json!({})), Some(String::new()));
}

#[test]
fn extender_probe_pod_is_not_a_fault() {
    for mut facts in [with_extender(), sound()] {
        let mut probe = waiting_pod(INSUFFICIENT);
        probe["metadata"]["annotations"] = json!({"topolvm.io/extender-probe": "never runs"});
        facts.pods = Ok(vec![of(probe)]);
        assert_sound(&facts);
    }
}

#[test]
fn storage_class_without_device_class_needs_a_default_class() {
    let mut facts = sound();
    facts.classes = Ok(vec![of(class(&json!({}), "WaitForFirstConsumer"))]);
    let annotations = facts.nodes.as_mut().unwrap()[0].metadata.annotations.as_mut().unwrap();
    // As our agents publish that there is none
    annotations.insert("capacity.topolvm.io/00default".to_owned(), "0".to_owned());
    facts.claims = Ok(vec![of(claim(&json!({})))]);
    facts.pods = Ok(vec![of(waiting_pod("0/1 nodes are available: 1 node(s) did not have enough free storage."))]);
    facts.pods.as_mut().unwrap()[0].spec.as_mut().unwrap().containers.clear();
    let words = "its pods request 00default, and nodes have only ssd; waiting: vault/vault-0 (statefulset/vault)";
    let fix = r#""parameters":{"topolvm.io/device-class":"ssd"}"#;
    assert_named(&facts, "storage-classes", Outcome::Fail, words, fix);
    facts.pods = Ok(Vec::new());
    let other = json!({"metadata": {"name": "n2", "annotations": {
        "capacity.topolvm.io/00default": "7", "capacity.topolvm.io/ssd": "7",
    }, "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": "n2"}}});
    facts.nodes.as_mut().unwrap().push(of(other));
    let registered = json!({"metadata": {"name": "n2"}, "spec": {"drivers": [{"name": "topolvm.io", "nodeID": "n2"}]}});
    facts.csi_nodes.as_mut().unwrap().push(of(registered));
    facts.metrics.push(metrics("n2", ""));
    assert_named(&facts, "storage-classes", Outcome::Warn, "n1 have no default class", "set default: true for a class");
}

#[test]
fn pod_bound_by_hand_waits_for_the_selected_node_of_its_claim() {
    let mut facts = sound();
    let mut pod = waiting_pod("");
    pod["spec"]["nodeName"] = json!("n1");
    pod["spec"]["containers"] = json!([]);
    facts.pods = Ok(vec![of(pod)]);
    facts.claims = Ok(vec![of(claim(&json!({})))]);
    let command = "kubectl -n vault annotate pvc data-vault-0 volume.kubernetes.io/selected-node=n1";
    assert_named(
        &facts,
        "unscheduled-pods",
        Outcome::Fail,
        "pod vault/vault-0 on node n1 bypassed kube-scheduler",
        command,
    );
    facts.claims = Ok(vec![of(claim(&json!({"volume.kubernetes.io/selected-node": "n1"})))]);
    assert_sound(&facts);
}

#[test]
fn a_selected_node_that_is_gone_or_cordoned_is_named() {
    let mut facts = sound();
    facts.claims = Ok(vec![of(claim(&json!({"volume.kubernetes.io/selected-node": "n9"})))]);
    let command = "kubectl -n vault annotate pvc data-vault-0 volume.kubernetes.io/selected-node-";
    assert_named(&facts, "selected-nodes", Outcome::Fail, "selected node n9, which does not exist", command);
    facts.claims = Ok(vec![of(claim(&json!({"volume.kubernetes.io/selected-node": "n1"})))]);
    assert_sound(&facts);
    facts.nodes.as_mut().unwrap()[0].spec = of(json!({"unschedulable": true}));
    assert_named(&facts, "selected-nodes", Outcome::Warn, "selected node n1, which is cordoned", command);
}
