//! Check of the topology label, by which volumes find the node that they are on.

use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt as _;
use topolvm_api::ApiFlavor;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::read_error::{ReadError, read};
use crate::shell::quote;

pub(super) fn labels(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let key = facts.flavor.topology_key();
    let registered = facts.registered_nodes()?;
    let mut findings = Vec::new();
    for node in read(&facts.nodes)?.iter().filter(|node| node.metadata.deletion_timestamp.is_none()) {
        let name = node.name_any();
        let is_registered = registered.contains(&name);
        let found = match wrong_value(facts.flavor, node) {
            Some(value) => format!(
                "Node {name} has the label {key}={value} instead of {key}={name}: kube-scheduler confuses its pods \
                 with volumes of node {value}"
            ),
            None if is_registered && !node.labels().contains_key(key) => {
                format!("Node {name} has no label {key}={name}: no pod with a volume of this node fits anywhere")
            }
            None => continue,
        };
        let remedy = "correct the label, and remove it from its source, such as the template of a node pool; a running \
                      topolvm-node corrects it if its ClusterRole and admission policy allow that";
        findings.push(Finding::fail(found, remedy).with_commands([label_command(facts.flavor, &name)]));
    }
    Ok(Finding::ok_if_none(findings, format!("the label {key} of each node is the name of the node")))
}

/// Returns the value of the topology label if it is not the name of the Node.
pub(super) fn wrong_value(flavor: ApiFlavor, node: &Node) -> Option<&str> {
    let value = node.labels().get(flavor.topology_key())?;
    (*value != node.name_any()).then_some(value.as_str())
}

/// Returns the command that corrects the label of a Node.
pub(super) fn label_command(flavor: ApiFlavor, node: &str) -> String {
    let label = format!("{}={node}", flavor.topology_key());
    format!("kubectl label node {} {} --overwrite", quote(node), quote(&label))
}
