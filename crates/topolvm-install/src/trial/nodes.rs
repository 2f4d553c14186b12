//! Nodes of a trial: which ones, and their label.

use cli_runtime::objects::is_ready;
use cli_runtime::request::RequestError;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::TrialFlags;
use crate::install::InstallError;
use crate::install::loop_file::LABEL;

/// Returns the names of the nodes that the flags mean; of the only schedulable one if they name none. A node that is
/// not ready is an error.
pub(super) fn choose(nodes: &[Node], flags: &TrialFlags) -> Result<Vec<String>, InstallError> {
    let names_some = !flags.node.is_empty() || !flags.node_selector.is_empty();
    let is_chosen = |node: &&Node| {
        let has_labels = flags.node_selector.iter().all(|(key, value)| node.labels().get(key) == Some(value));
        match (flags.node.is_empty(), flags.node_selector.is_empty()) {
            (false, _) => flags.node.contains(&node.name_any()),
            (true, false) => has_labels,
            // A second run is for the nodes of the first
            (true, true) => has_label(node),
        }
    };
    let mut chosen: Vec<_> = nodes.iter().filter(is_chosen).collect();
    if !names_some && chosen.is_empty() {
        chosen = nodes.iter().filter(|node| is_schedulable(node)).collect();
        if chosen.len() > 1 {
            let names: Vec<_> = chosen.iter().map(|node| node.name_any()).collect();
            let problem =
                format!("the cluster has {} nodes; use --node for each node to use: {}", names.len(), names.join(", "));
            return Err(InstallError::Unfit(vec![problem]));
        }
    }
    let found: Vec<_> = chosen.iter().map(|node| node.name_any()).collect();
    let absent =
        flags.node.iter().filter(|name| !found.contains(name)).map(|name| format!("node {name} does not exist"));
    let not_ready = chosen.iter().filter(|node| !is_ready(node));
    let not_ready = not_ready.map(|node| format!("node {} is not ready; see kubectl describe node", node.name_any()));
    let mut problems: Vec<_> = absent.chain(not_ready).collect();
    if found.is_empty() && problems.is_empty() {
        problems.push("no node is selected; see kubectl get nodes --show-labels".to_owned());
    }
    if problems.is_empty() { Ok(found) } else { Err(InstallError::Unfit(problems)) }
}

/// Returns true for a node on which a pod without tolerations can run.
fn is_schedulable(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let is_open = spec.is_none_or(|spec| spec.unschedulable != Some(true));
    is_open && !taints.into_iter().any(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute")
}

pub(super) fn has_label(node: &Node) -> bool {
    node.labels().contains_key(LABEL.0)
}

/// Puts the label on a node.
pub(super) async fn label(client: &Client, name: &str) -> Result<(), InstallError> {
    patch(client, name, LABEL.1.into()).await
}

/// Takes the label off a node.
pub(super) async fn unlabel(client: &Client, name: &str) -> Result<(), InstallError> {
    patch(client, name, Value::Null).await
}

async fn patch(client: &Client, name: &str, value: Value) -> Result<(), InstallError> {
    let patch = json!({ "metadata": { "labels": { LABEL.0: value } } });
    let patched = Api::<Node>::all(client.clone()).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).map_err(|error| RequestError::new("patch", "nodes".to_owned(), error).into())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};
    use rstest::rstest;

    use super::*;

    fn node(name: &str, labels: &Value, spec: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": if name == "down" { "False" } else { "True" }}]},
        }))
        .unwrap()
    }

    fn flags(words: &[&str]) -> TrialFlags {
        let matches = TrialFlags::augment_args(Command::new("trial")).get_matches_from([&["trial"], words].concat());
        TrialFlags::from_arg_matches(&matches).unwrap()
    }

    fn chosen(nodes: &[Node], words: &[&str]) -> Result<Vec<String>, String> {
        choose(nodes, &flags(words)).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case(&["--node=a"], Ok("a"))]
    #[case(&["--node=a", "--node=b"], Ok("a, b"))]
    #[case(&["--node-selector=disk=none"], Ok("b"))]
    #[case(&["--node=x"], Err("node x does not exist"))]
    #[case(&["--node=down"], Err("node down is not ready"))]
    #[case(&["--node-selector=disk=many"], Err("no node is selected"))]
    #[case(&[], Err("the cluster has 2 nodes; use --node for each node to use: a, b"))]
    fn nodes_are_named_or_selected(#[case] words: &[&str], #[case] expected: Result<&str, &str>) {
        let nodes = [
            node("a", &json!({}), &json!({})),
            node("b", &json!({"disk": "none"}), &json!({})),
            node("down", &json!({}), &json!({"unschedulable": true})),
        ];
        match (chosen(&nodes, words), expected) {
            (Ok(names), Ok(expected)) => assert_eq!(names.join(", "), expected),
            (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
            (chosen, _) => panic!("{chosen:?}"),
        }
    }

    #[test]
    fn trial_nodes_default_to_the_only_worker_or_labelled_nodes() {
        let taint = json!({"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]});
        let mut nodes = vec![node("master", &json!({}), &taint), node("worker", &json!({}), &json!({}))];
        assert_eq!(chosen(&nodes, &[]).unwrap(), ["worker"]);
        nodes.push(node("tried", &json!({"topolvm.io/trial": "true"}), &json!({})));
        assert_eq!(chosen(&nodes, &[]).unwrap(), ["tried"]);
    }
}
