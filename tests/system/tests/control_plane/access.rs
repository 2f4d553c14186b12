//! What the service accounts may do, and above all what they may not.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::topolvm::{NODE, account_token};

use crate::Body;
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("a_node_agents_token_changes_nothing_of_another_node", stolen),
    ("a_token_that_names_no_node_changes_nothing", unbound),
    ("the_service_accounts_can_do_nothing_else", nothing_else),
];

/// What an agent writes to its objects, and a thief to those of others.
const CAPACITY: &str = r#"{"metadata":{"annotations":{"capacity.topolvm.io/00default":"1"}}}"#;
const FINALIZER: &str =
    r#"{"metadata":{"finalizers":["topolvm.io/logicalvolume"],"labels":{"app.kubernetes.io/created-by":"x"}}}"#;
const SIZE: &str = r#"{"status":{"currentSize":"1Gi"}}"#;
/// What even its own agent must not write.
const LABEL: &str = r#"{"metadata":{"labels":{"steers":"pods"}}}"#;
const ANNOTATION: &str =
    r#"{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}"#;
const TAINTS: &str = r#"{"spec":{"unschedulable":true}}"#;
const MOVE: &str = r#"{"spec":{"nodeName":"mine"}}"#;
const GROW: &str = r#"{"spec":{"size":"1Ti"}}"#;

fn stolen(fixture: &Fixture) -> Result<()> {
    for (node, volume) in [("mine", "my-volume"), ("yours", "your-volume")] {
        fixture.node(node)?;
        fixture.volume(volume, node)?;
    }
    let token = account_token(&fixture.cluster, NODE, Some("mine"))?;
    let patch = |path: &str, patch: &str| fixture.request_as(&token, "PATCH", path, patch);
    let (my_node, your_node) = ("/api/v1/nodes/mine", "/api/v1/nodes/yours");
    let volume = |name: &str| format!("/apis/topolvm.io/v1/logicalvolumes/{name}");
    let (my_volume, your_volume) = (volume("my-volume"), volume("your-volume"));
    let (my_status, your_status) = (volume("my-volume/status"), volume("your-volume/status"));
    let uid = |name: &str| fixture.kubectl(&["get", LV, name, "-o", "jsonpath={.metadata.uid}"]);
    let (my_id, your_id) = (volume_id(&uid("my-volume")?), volume_id(&uid("your-volume")?));
    // The API server takes a moment to know a new policy
    fixture.cluster.ready("apiserver", || refused(&patch(your_node, LABEL)?, "", "a label"))?;
    for (path, content) in [(my_node, CAPACITY), (&my_volume, FINALIZER), (&my_status, SIZE), (&my_status, &my_id)] {
        let (status, said) = patch(path, content)?;
        ensure!(status == 200, "{path} {content} is refused: {said}");
    }
    let others = "node mine may not change objects of node yours";
    for (path, content, why) in [
        (your_node, CAPACITY, others),
        (&your_volume, FINALIZER, others),
        (&your_status, SIZE, others),
        (&your_volume, GROW, others),
        (&my_volume, GROW, "does not change the spec"),
        // Nor let a volume pass for another's, which would then be deleted and grown instead
        (&my_status, &your_id, "no other volume id than the UID"),
        (&my_status, &volume_id("x"), "no other volume id than the UID"),
        (my_node, TAINTS, "does not change the spec"),
        (my_node, LABEL, "does not change labels"),
        (my_node, ANNOTATION, "changes no other annotations"),
        ("/api/v1/nodes/mine/status", r#"{"status":{"phase":"Running"}}"#, "cannot patch"),
    ] {
        refused(&patch(path, content)?, why, &format!("{path} {content}"))?;
    }
    // Nor make another's volume one's own, or one's own another's: that the definition refuses to everybody
    for (path, content) in [(&your_volume, MOVE), (&my_volume, r#"{"spec":{"nodeName":"yours"}}"#)] {
        let (status, said) = patch(path, content)?;
        ensure!(
            status == 422 && said.contains("cannot be changed"),
            "{path} {content} is answered with {status}: {said}"
        );
    }
    older_id_is_kept(fixture, &token)?;
    for path in [&my_volume, your_node] {
        refused(&fixture.request_as(&token, "DELETE", path, "")?, "cannot delete", path)?;
    }
    for node in ["mine", "yours"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=60s"])?;
    }
    Ok(())
}

/// What an agent writes to a volume that has another id than its UID, from whoever made it: everything but the id.
fn older_id_is_kept(fixture: &Fixture, token: &str) -> Result<()> {
    let (name, status) = ("old-volume", "/apis/topolvm.io/v1/logicalvolumes/old-volume/status");
    fixture.volume(name, "mine")?;
    fixture.kubectl(&["patch", LV, name, "--subresource=status", "--type=merge", "-p", &volume_id("old")])?;
    let (another, none, again) = (volume_id("older"), volume_id(""), volume_id("old"));
    for (content, expected) in [(SIZE, 200), (&another, 403), (&none, 200), (&again, 403)] {
        let (answer, said) = fixture.request_as(token, "PATCH", status, content)?;
        ensure!(answer == expected, "{status} {content} is answered with {answer}: {said}");
    }
    Ok(())
}

/// The patch that gives a volume this id.
fn volume_id(id: &str) -> String {
    json!({"status": {"volumeID": id}}).to_string()
}

fn unbound(fixture: &Fixture) -> Result<()> {
    fixture.node("some")?;
    let token = account_token(&fixture.cluster, NODE, None)?;
    let answer = fixture.request_as(&token, "PATCH", "/api/v1/nodes/some", CAPACITY)?;
    refused(&answer, "does not say which node", "a token without a node")?;
    fixture.kubectl(&["delete", "node", "some", "--timeout=60s"]).map(drop)
}

fn nothing_else(fixture: &Fixture) -> Result<()> {
    let account = |name: &str| format!("--as=system:serviceaccount:topolvm-system:{name}");
    let (node, controller) = (account("topolvm-node"), account("topolvm-controller"));
    for (who, verb, what) in [
        (&node, "create", LV),
        (&node, "delete", LV),
        (&node, "delete", "nodes"),
        (&node, "update", "nodes"),
        (&node, "get", "nodes"),
        (&node, "list", "pods"),
        (&node, "list", "persistentvolumeclaims"),
        (&node, "get", "secrets"),
        (&controller, "get", "secrets"),
        (&controller, "create", "pods"),
        (&controller, "delete", "pods"),
        (&controller, "create", "persistentvolumeclaims"),
        (&controller, "delete", "nodes"),
        (&controller, "delete", "persistentvolumes"),
        (&controller, "patch", "persistentvolumes"),
        (&controller, "update", "leases"),
    ] {
        let output = fixture.cluster.kubectl(["auth", "can-i", verb, what, who.as_str(), "--all-namespaces"])?;
        let answer = String::from_utf8_lossy(&output.stdout);
        ensure!(answer.trim() == "no", "{who} can {verb} {what}: {answer}");
    }
    Ok(())
}

/// Refused, and for this reason.
fn refused((status, said): &(u16, String), why: &str, what: &str) -> Result<()> {
    ensure!(*status == 403, "{what} is answered with {status}: {said}");
    ensure!(said.contains(why), "{what} is refused for another reason: {said}");
    Ok(())
}
