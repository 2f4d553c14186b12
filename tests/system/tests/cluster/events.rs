//! Events of LogicalVolumes that the agent writes with the roles of the manifests, and that `kubectl describe` shows.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::topolvm::NODE;
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 2] = [
        ("failed_create_resize_and_delete_are_events_of_the_volume", report_failures),
        ("forbidden_events_log_one_warning_and_block_no_volume", refuse_events),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Size that the volume group does not have.
const TOO_MUCH: &str = "100Gi";
/// [`TOO_MUCH`] in bytes.
const TOO_MANY_BYTES: &str = "107374182400";

/// Creates a LogicalVolume without a claim and returns its UID.
pub(crate) fn create_volume(fixture: &Fixture, name: &str, size: &str) -> Result<String> {
    fixture.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name},
        "spec": {"name": name, "nodeName": fixture.node.name(), "size": size},
    }))?;
    fixture.value(&logical_volume_resource(TopoLvm), name, ".metadata.uid")
}

/// Deletes LogicalVolumes and waits until they are removed.
pub(crate) fn delete_volumes(fixture: &Fixture, names: &[&str]) -> Result<()> {
    let group = logical_volume_resource(TopoLvm);
    let arguments: Vec<_> = ["delete", &group, "--timeout=180s"].into_iter().chain(names.iter().copied()).collect();
    fixture.kubectl(&arguments).map(drop)
}

fn resize_volume(fixture: &Fixture, name: &str, size: &str) -> Result<()> {
    let patch = json!({"spec": {"size": size}}).to_string();
    fixture.kubectl(&["patch", &logical_volume_resource(TopoLvm), name, "--type=merge", "-p", &patch]).map(drop)
}

/// Lists the Events of a reason about an object, in the namespace of Events about objects without a namespace.
fn list_events(fixture: &Fixture, uid: &str, reason: &str) -> Result<Vec<Value>> {
    let selector = format!("--field-selector=involvedObject.uid={uid},reason={reason}");
    let list: Value = serde_json::from_str(&fixture.kubectl(&["get", "events", &selector, "-o", "json"])?)?;
    list["items"].as_array().cloned().context("kubectl prints no list")
}

/// Waits for the only Event of a reason about a LogicalVolume, checks its fields and that `kubectl describe` shows it,
/// and returns its message.
fn wait_for_event(fixture: &Fixture, name: &str, uid: &str, reason: &str) -> Result<String> {
    let event = fixture.cluster.ready("apiserver", || {
        let events = list_events(fixture, uid, reason)?;
        ensure!(events.len() == 1, "{} events {reason} of {name}: {events:?}", events.len());
        events.into_iter().next().context("no event")
    })?;
    let about = json!({"apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "name": name, "uid": uid});
    ensure!(event["involvedObject"] == about, "the event is about {}", event["involvedObject"]);
    let who = ["type", "action", "reportingComponent", "reportingInstance"].map(|key| event[key].clone());
    let action = reason.trim_end_matches("Failed");
    ensure!(json!(who) == json!(["Warning", action, "topolvm-node", fixture.node.name()]), "{event}");
    let message = event["message"].as_str().context("an event without a message")?;
    let described = fixture.kubectl(&["describe", &logical_volume_resource(TopoLvm), name])?;
    let shown = described.lines().any(|line| line.contains(reason) && line.contains(message));
    ensure!(shown, "kubectl describe does not show {reason}, {message:?}: {described}");
    Ok(message.to_owned())
}

fn report_failures(fixture: &Fixture) -> Result<()> {
    let group = logical_volume_resource(TopoLvm);
    let large = create_volume(fixture, "failing-large", TOO_MUCH)?;
    let message = wait_for_event(fixture, "failing-large", &large, "CreateFailed")?;
    ensure!(message.contains("no enough space") && message.contains(TOO_MANY_BYTES), "the event says: {message}");
    ensure!(message == fixture.value(&group, "failing-large", ".status.message")?, "the status says something else");
    delete_volumes(fixture, &["failing-large"])?;

    let uid = create_volume(fixture, "failing", "64Mi")?;
    fixture.wait_value(&group, "failing", ".status.currentSize", "64Mi")?;
    fixture.check_volumes(1)?;
    resize_volume(fixture, "failing", TOO_MUCH)?;
    let message = wait_for_event(fixture, "failing", &uid, "ExpandFailed")?;
    ensure!(message.contains("no enough space"), "the event says: {message}");
    resize_volume(fixture, "failing", "128Mi")?;
    fixture.wait_value(&group, "failing", ".status.currentSize", "128Mi")?;

    let opener = fixture.node.script(&format!("setsid sleep 3600 </dev/{VG}/{uid} >/dev/null 2>&1 & echo $!"))?;
    let stays = check_remove_failures(fixture, &uid);
    fixture.node.script(&format!("kill {}", opener.trim()))?;
    stays?;
    fixture.kubectl(&["wait", "--for=delete", &format!("{group}/failing"), "--timeout=180s"])?;
    fixture.check_volumes(0)
}

/// Checks that each attempt to remove an open volume is counted in the same Event.
fn check_remove_failures(fixture: &Fixture, uid: &str) -> Result<()> {
    fixture.kubectl(&["delete", &logical_volume_resource(TopoLvm), "failing", "--wait=false"])?;
    let message = wait_for_event(fixture, "failing", uid, "RemoveFailed")?;
    ensure!(message.contains(&format!("{VG}/{uid}")) && message.contains("in use"), "the event says: {message}");
    fixture.cluster.ready("apiserver", || {
        let events = list_events(fixture, uid, "RemoveFailed")?;
        let count = events.iter().map(|event| &event["series"]["count"]).next().and_then(Value::as_u64);
        ensure!(events.len() == 1 && count.is_some_and(|count| count >= 3), "not counted: {events:?}");
        Ok(())
    })?;
    fixture.check_volumes(1)
}

const ROLE: &str = "topolvm-system:node";

fn refuse_events(fixture: &Fixture) -> Result<()> {
    let rules = fixture.get_object("clusterrole", ROLE)?["rules"].clone();
    let mut fewer = rules.as_array().cloned().context("a role without rules")?;
    fewer.retain(|rule| rule["resources"] != json!(["events"]));
    ensure!(json!(fewer) != rules, "the role says nothing of events");
    set_role_rules(fixture, &json!(fewer), "no")?;
    let done = fail_without_events(fixture);
    set_role_rules(fixture, &rules, "yes")?;
    let warnings = done?;

    // Events are written again, without those that were refused
    let uid = create_volume(fixture, "unsaid-last", TOO_MUCH)?;
    wait_for_event(fixture, "unsaid-last", &uid, "CreateFailed")?;
    let now = count_agent_warnings(fixture)?;
    ensure!(now == warnings + 1, "{} warnings of three refused events", now - warnings);
    delete_volumes(fixture, &["unsaid-1", "unsaid-2", "unsaid-3", "unsaid-good", "unsaid-last"])?;
    fixture.check_volumes(0)
}

/// Creates three volumes that fail while the agent may not write Events. Returns the number of warnings that the agent
/// had logged before.
fn fail_without_events(fixture: &Fixture) -> Result<usize> {
    let group = logical_volume_resource(TopoLvm);
    let before = count_agent_warnings(fixture)?;
    for name in ["unsaid-1", "unsaid-2", "unsaid-3"] {
        create_volume(fixture, name, TOO_MUCH)?;
        fixture.wait_value(&group, name, ".status.conditions[0].reason", "CreateFailed")?;
    }
    create_volume(fixture, "unsaid-good", "64Mi")?;
    fixture.wait_value(&group, "unsaid-good", ".status.currentSize", "64Mi")?;
    fixture.cluster.ready("apiserver", || {
        ensure!(count_agent_warnings(fixture)? > before, "no warning in the log of the agent");
        Ok(())
    })?;
    Ok(before)
}

/// Applies these rules to the agent's role, and waits until it may, or may not, write Events.
fn set_role_rules(fixture: &Fixture, rules: &Value, may: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": rules,
    }))?;
    fixture.cluster.ready("apiserver", || {
        let account = "--as=system:serviceaccount:topolvm-system:topolvm-node";
        // Its exit status is also that of "no"
        let output = fixture.cluster.kubectl(["auth", "can-i", "create", "events.events.k8s.io", account])?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(said == may, "kubectl says {said}");
        Ok(())
    })
}

fn count_agent_warnings(fixture: &Fixture) -> Result<usize> {
    let log = fs::read_to_string(fixture.node.log(NODE))?;
    Ok(log.lines().filter(|line| line.contains("cannot write Events") && line.contains("WARN")).count())
}
