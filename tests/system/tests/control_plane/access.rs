//! What the service accounts may do, and above all what they may not.

use anyhow::{Result, ensure};
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
const STATUS: &str = r#"{"status":{"volumeID":"x","currentSize":"1Gi"}}"#;
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
    let patch = |words: &[&str], patch: &str| {
        fixture.kubectl_as(&token, &[&["patch", "--type=merge", "-p", patch][..], words].concat())
    };
    let status = "--subresource=status";
    // The API server takes a moment to know a new policy: what is forbidden is asked until it is refused
    fixture.cluster.ready("apiserver", || {
        let answer = patch(&["node", "yours"], LABEL)?;
        ensure!(!answer.status.success(), "the policy is not in force");
        Ok(())
    })?;
    for (words, content) in
        [(&["node", "mine"][..], CAPACITY), (&[LV, "my-volume"], FINALIZER), (&[LV, "my-volume", status], STATUS)]
    {
        let answer = patch(words, content)?;
        ensure!(answer.status.success(), "{words:?} is refused: {}", String::from_utf8_lossy(&answer.stderr));
    }
    let others = "node mine may not change objects of node yours";
    for (words, content, why) in [
        (&["node", "yours"][..], CAPACITY, others),
        (&[LV, "your-volume"], FINALIZER, others),
        (&[LV, "your-volume", status], STATUS, others),
        // Nor make another's volume one's own, or one's own another's
        (&[LV, "your-volume"], MOVE, others),
        (&[LV, "my-volume"], r#"{"spec":{"nodeName":"yours"}}"#, "does not change the spec"),
        (&[LV, "my-volume"], GROW, "does not change the spec"),
        (&["node", "mine"], TAINTS, "does not change the spec"),
        (&["node", "mine"], LABEL, "no labels"),
        (&["node", "mine"], ANNOTATION, "no other annotations"),
        (&["node", "mine", status], r#"{"status":{"phase":"Running"}}"#, "forbidden"),
    ] {
        refused(&patch(words, content)?, why, &format!("{words:?} {content}"))?;
    }
    for words in [&["delete", LV, "my-volume", "--wait=false"][..], &["delete", "node", "yours", "--wait=false"]] {
        refused(&fixture.kubectl_as(&token, words)?, "forbidden", &format!("{words:?}"))?;
    }
    for node in ["mine", "yours"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=60s"])?;
    }
    Ok(())
}

fn unbound(fixture: &Fixture) -> Result<()> {
    fixture.node("some")?;
    let token = account_token(&fixture.cluster, NODE, None)?;
    let answer = fixture.kubectl_as(&token, &["patch", "node", "some", "--type=merge", "-p", CAPACITY])?;
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
        (&node, "list", "pods"),
        (&node, "list", "persistentvolumeclaims"),
        (&node, "get", "secrets"),
        (&controller, "get", "secrets"),
        (&controller, "create", "pods"),
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

fn refused(answer: &std::process::Output, why: &str, what: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&answer.stderr).to_lowercase();
    ensure!(!answer.status.success(), "{what} is allowed");
    ensure!(said.contains("forbidden") && said.contains(why), "{what} is refused for another reason: {said}");
    Ok(())
}
