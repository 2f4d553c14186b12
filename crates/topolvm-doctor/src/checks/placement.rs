//! Checks of the nodes for which claims and pods have been meant by hand, or that have gone since.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube_core::ResourceExt as _;
use topolvm_api::{SELECTED_NODE, claim_names};

use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::{class_of, full_name, is_over, is_unbound, node_of, waits_for_pods};
use crate::read_error::{ReadError, read};
use crate::shell::quote;

/// Returns the claims without a volume whose StorageClass is ours and waits for pods.
fn waiting_claims(facts: &Facts) -> Result<Vec<&PersistentVolumeClaim>, ReadError> {
    let classes = facts.our_classes()?;
    let waits =
        |claim: &&PersistentVolumeClaim| is_unbound(claim) && class_of(claim, &classes).is_some_and(waits_for_pods);
    Ok(read(&facts.claims)?.iter().filter(waits).collect())
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<&String> {
    claim.annotations().get(SELECTED_NODE)
}

/// Returns the command that sets the annotation, or removes it.
fn annotate(claim: &PersistentVolumeClaim, node: Option<&str>) -> String {
    let value = node.map_or_else(|| "-".to_owned(), |node| format!("={node}"));
    let namespace = claim.namespace().unwrap_or_default();
    let (namespace, name) = (quote(&namespace), quote(&claim.name_any()));
    format!("kubectl -n {namespace} annotate pvc {name} {}", quote(&format!("{SELECTED_NODE}{value}")))
}

pub(super) fn bypassing_pods(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let pods = read(&facts.pods)?;
    let claims = waiting_claims(facts)?;
    let mut findings = Vec::new();
    for (pod, node) in pods.iter().filter(|pod| !is_over(pod)).filter_map(|pod| Some((pod, node_of(pod)?))) {
        let names = claim_names(pod);
        let is_used =
            |claim: &&&PersistentVolumeClaim| claim.namespace() == pod.namespace() && names.contains(&claim.name_any());
        for claim in claims.iter().filter(is_used).filter(|claim| selected_node(claim).is_none()) {
            let (pod, claim_name) = (full_name(pod), full_name(*claim));
            let found = format!(
                "pod {pod} on node {node} bypassed kube-scheduler (spec.nodeName), and its claim {claim_name} is \
                     not bound"
            );
            let remedy = format!(
                "select the node for the claim; preferably recreate the pod with nodeSelector kubernetes.io/hostname: \
                    {node} instead of spec.nodeName"
            );
            findings.push(Finding::fail(found, remedy).with_commands([annotate(claim, Some(node))]));
        }
    }
    Ok(Finding::ok_if_none(findings, "no pod on a node has an unbound claim"))
}

pub(super) fn selected_nodes(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let nodes = read(&facts.nodes)?;
    let mut findings = Vec::new();
    for claim in waiting_claims(facts)? {
        let Some(selected) = selected_node(claim) else { continue };
        let node = nodes.iter().find(|node| node.metadata.name.as_ref() == Some(selected));
        let found = format!("claim {} has the selected node {selected}", full_name(claim));
        let is_cordoned =
            node.and_then(|node| node.spec.as_ref()).and_then(|spec| spec.unschedulable).unwrap_or_default();
        let remedy = "remove the annotation, so that kube-scheduler selects another node for the pod";
        let finding = match node {
            None => Finding::fail(format!("{found}, which does not exist"), remedy),
            Some(_) if is_cordoned => Finding::warn(format!("{found}, which is cordoned"), remedy),
            Some(_) => continue,
        };
        findings.push(finding.with_commands([annotate(claim, None)]));
    }
    Ok(Finding::ok_if_none(findings, "no waiting claim has a selected node that is unschedulable"))
}
