//! DiskOperation objects: the rules of their definition, whose they are, their columns, and their end with the Node.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::assets;
use testbed::topolvm::{NODE, account_token};
use topolvm_api::{ApiFlavor, disk_operation_crd};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) const ALL: &[(&str, Body)] = &[
    ("disk_operation_definition_rejects_impossible_specs", reject_specs),
    ("disk_operations_are_changed_by_their_own_agent_alone", change_own_alone),
    ("disk_operations_are_selected_by_node_and_listed", list_operations),
    ("disk_operations_exist_in_the_older_api_group", use_legacy_group),
];

const OPERATIONS: &str = "diskoperations.topolvm.io";
const PATH: &str = "/apis/topolvm.io/v1/diskoperations";
const FINALIZER: &str = "topolvm.io/diskoperation";

fn operation(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "topolvm.io/v1", "kind": "DiskOperation", "metadata": {"name": name}, "spec": spec})
}

fn spec(node: &str) -> Value {
    json!({"nodeName": node, "disk": "u-1", "type": "Evacuate"})
}

fn with(field: &str, value: &Value) -> Value {
    let mut spec = spec("n1");
    spec[field] = value.clone();
    spec
}

fn reject_specs(fixture: &Fixture) -> Result<()> {
    let rate = "maxBytesPerSecond";
    for (spec, why) in [
        (with("type", &json!("Vanish")), "Unsupported value"),
        (with("disk", &json!("")), "should be at least 1 chars long"),
        (with("nodeName", &Value::Null), "spec.nodeName in body must be of type string"),
        (with(rate, &json!(0)), "must be greater than 0"),
        (with(rate, &json!("-1Mi")), "must be greater than 0"),
        (with(rate, &json!("fast")), "spec.maxBytesPerSecond"),
        (with("ttlSecondsAfterFinished", &json!(-1)), "should be greater than or equal to 0"),
        (json!({"nodeName": "n1", "disk": "u", "type": "Add", rate: "1Mi"}), "for the types Evacuate and Remove"),
    ] {
        let refused = fixture.apply(&operation("refused", &spec));
        let said = refused.err().with_context(|| format!("{spec} is accepted"))?;
        ensure!(format!("{said:#}").contains(why), "{spec} is not refused because {why}: {said:#}");
    }
    for (name, rate) in [("number", json!(104_857_600)), ("quantity", json!("100Mi"))] {
        fixture.apply(&operation(name, &with("maxBytesPerSecond", &rate)))?;
    }
    let ttl = fixture.value(OPERATIONS, "number", ".spec.ttlSecondsAfterFinished")?;
    ensure!(ttl == "604800", "the default is {ttl}");
    let patch = r#"{"spec":{"disk":"u-2"}}"#;
    let output = fixture.cluster.kubectl(["patch", OPERATIONS, "number", "--type=merge", "-p", patch])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("spec cannot be changed"), "the spec is changed: {said}");
    let label = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    fixture.kubectl(&["patch", OPERATIONS, "number", "--type=merge", "-p", label])?;
    fixture.kubectl(&["delete", OPERATIONS, "--all", "--timeout=180s"]).map(drop)
}

fn change_own_alone(fixture: &Fixture) -> Result<()> {
    for node in ["mine", "yours"] {
        fixture.create_node(node)?;
        fixture.apply(&operation(&format!("of-{node}"), &spec(node)))?;
    }
    let token = account_token(&fixture.cluster, NODE, Some("mine"))?;
    let ask = |method: &str, path: &str, body: &Value| {
        fixture.request_as(&token, method, &format!("{PATH}{path}"), &body.to_string())
    };
    let status = |phase: &str| json!({"status": {"phase": phase, "diskUUID": "u-1"}});
    let held = json!({"metadata": {"finalizers": [FINALIZER]}});
    // The API server takes a moment to load a new policy
    fixture.cluster.ready("apiserver", || {
        ensure_refused(&ask("PATCH", "/of-yours", &held)?, "may not change objects of node yours")
    })?;
    for (path, body) in [("/of-mine", &held), ("/of-mine/status", &status("Running"))] {
        let (answer, said) = ask("PATCH", path, body)?;
        ensure!(answer == 200, "{path} {body} is answered with {answer}: {said}");
    }
    let none = json!({});
    let metadata = |metadata: Value| json!({ "metadata": metadata });
    let others = "may not change objects of node yours";
    for (method, path, body, why) in [
        ("POST", "", operation("another", &spec("mine")), "cannot create"),
        ("PATCH", "/of-mine", metadata(json!({"annotations": {"a": "b"}})), "may not change annotations"),
        ("PATCH", "/of-mine", metadata(json!({"labels": {"a": "b"}})), "may only change the topology label"),
        ("PATCH", "/of-mine", metadata(json!({"finalizers": ["example.com/x"]})), "may only change its own finalizers"),
        ("PATCH", "/of-yours/status", status("Running"), others),
        ("DELETE", "/of-mine", none.clone(), "only delete finished DiskOperations"),
        ("DELETE", "/of-yours", none.clone(), others),
    ] {
        ensure_refused(&ask(method, path, &body)?, why)?;
    }
    let (answer, said) = ask("PATCH", "/of-mine", &json!({"spec": {"disk": "u-2"}}))?;
    ensure!(answer == 422 && said.contains("spec cannot be changed"), "the spec is changed: {answer}, {said}");
    let (answer, said) = ask("PATCH", "/of-mine/status", &status("Succeeded"))?;
    ensure!(answer == 200, "the end is answered with {answer}: {said}");
    for (method, body) in [("PATCH", metadata(json!({"finalizers": null}))), ("DELETE", none)] {
        let (answer, said) = ask(method, "/of-mine", &body)?;
        ensure!(answer == 200, "{method} of a finished operation is answered with {answer}: {said}");
    }
    ensure!(!fixture.exists(OPERATIONS, "of-mine")?, "a finished operation is not deleted");

    // One that is under way goes with its Node, whose agent may not exist any more
    let held = held.to_string();
    fixture.kubectl(&["patch", OPERATIONS, "of-yours", "--type=merge", "-p", &held])?;
    for node in ["mine", "yours"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
    }
    fixture.wait("--for=delete", OPERATIONS, "of-yours")
}

fn list_operations(fixture: &Fixture) -> Result<()> {
    for node in ["first", "second"] {
        fixture.apply(&operation(&format!("of-{node}"), &spec(node)))?;
    }
    let status = json!({"status": {
        "phase": "Running", "message": "moving", "diskUUID": "u-1", "volumeGroup": "vg", "devicePath": "/dev/sdb",
        "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T01:00:00Z",
        "progress": {"totalBytes": "2Gi", "completedBytes": "1Gi", "percent": "50%"},
        "conditions": [{
            "type": "Blocked", "status": "False", "reason": "Unblocked", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});
    let patch = status.to_string();
    fixture.kubectl(&["patch", OPERATIONS, "of-first", "--subresource=status", "--type=merge", "-p", &patch])?;
    let stored: Value = serde_json::from_str(&fixture.kubectl(&["get", OPERATIONS, "of-first", "-o", "json"])?)?;
    ensure!(stored["status"] == status["status"], "{} became {}", status["status"], stored["status"]);
    // Selectable fields of custom resources came with Kubernetes 1.31; before it, agents select for themselves
    let selector = if assets::is_oldest_kubernetes() { "" } else { "spec.nodeName=first" };
    let table = fixture.kubectl(&["get", OPERATIONS, "--field-selector", selector, "-o", "wide"])?;
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let lines: Vec<_> = lines.into_iter().filter(|line| !(selector.is_empty() && line.contains(&"second"))).collect();
    let header = ["NAME", "NODE", "DISK", "OPERATION", "PHASE", "PROGRESS", "AGE", "MESSAGE"];
    ensure!(lines.len() == 2 && lines[0] == header, "{table}");
    ensure!(lines[1][..6] == ["of-first", "first", "u-1", "Evacuate", "Running", "50%"], "{table}");
    ensure!(lines[1].last() == Some(&"moving"), "{table}");
    fixture.kubectl(&["delete", OPERATIONS, "--all", "--timeout=180s"]).map(drop)
}

fn use_legacy_group(fixture: &Fixture) -> Result<()> {
    let definition = "diskoperations.topolvm.cybozu.com";
    fixture.apply(&serde_json::to_value(disk_operation_crd(ApiFlavor::Legacy))?)?;
    fixture.wait("--for=condition=Established", "crd", definition)?;
    let mut object = operation("older", &spec("n1"));
    object["apiVersion"] = json!("topolvm.cybozu.com/v1");
    fixture.cluster.ready("apiserver", || fixture.apply(&object))?;
    fixture.kubectl(&["delete", definition, "older", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "crd", definition, "--timeout=180s"]).map(drop)
}

fn ensure_refused((status, said): &(u16, String), why: &str) -> Result<()> {
    ensure!(*status == 403 && said.contains(why), "answered with {status}, and not refused because {why}: {said}");
    Ok(())
}
