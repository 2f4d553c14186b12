//! A claim whose node seems to be lost, from fresh reads of the API server.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::claim::volume_name;
use topolvm_api::{ApiFlavor, RebuildPolicies, RebuildPolicy, RebuildTrigger};
use topolvm_kube::{CachedClaim, ReconcileError};

/// Taint with which an administrator declares that a node is shut down and will not write to its volumes any more. The
/// effect does not matter, as for Kubernetes' own pod garbage collector.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The way in which a node is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// There is no Node of this name.
    Deleted,
    /// The Node with this UID has the taint, and is not ready.
    OutOfService { uid: Option<String> },
}

/// A claim whose node seems to be lost.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) claim: PersistentVolumeClaim,
    pub(super) persistent: PersistentVolume,
    pub(super) node: String,
    pub(super) loss: Loss,
    pub(super) policy: RebuildPolicy,
}

/// Answer about a claim.
#[derive(Debug)]
pub(super) enum Examined {
    Candidate(Box<Candidate>),
    /// Its node, in this version, exists and is in service.
    Healthy {
        node: String,
        version: Option<String>,
    },
    /// It is gone, or another claim, or does not request to be recreated.
    NotConcerned,
}

impl Candidate {
    /// Describes the loss for users.
    pub(super) fn describe_loss(&self) -> String {
        match self.loss {
            Loss::Deleted => format!("Node {} was deleted", self.node),
            Loss::OutOfService { .. } => format!("Node {} is out of service", self.node),
        }
    }
}

/// Reads the claim, its PersistentVolume and its Node again.
pub(super) async fn examine(
    client: &Client,
    flavor: ApiFlavor,
    policies: &RebuildPolicies,
    seen: &CachedClaim,
) -> Result<Examined, ReconcileError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), seen.namespace());
    let found = claims.get_opt(seen.name()).await.map_err(ReconcileError::api("read claim", seen.full_name()))?;
    let is_same = |claim: &PersistentVolumeClaim| {
        claim.metadata.uid.as_deref() == seen.uid() && claim.metadata.deletion_timestamp.is_none()
    };
    let Some(claim) = found.filter(is_same) else { return Ok(Examined::NotConcerned) };
    let (Some(volume), Ok(policy)) = (volume_name(&claim), policies.of(&claim)) else {
        return Ok(Examined::NotConcerned);
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let persistent = volumes.get_opt(volume).await.map_err(ReconcileError::api("read PersistentVolume", volume))?;
    let Some(persistent) = persistent.filter(|persistent| is_bound_to(flavor, persistent, &claim)) else {
        return Ok(Examined::NotConcerned);
    };
    let Some(node) = node_of(flavor, &persistent).map(str::to_owned) else { return Ok(Examined::NotConcerned) };
    let nodes: Api<Node> = Api::all(client.clone());
    let found = nodes.get_opt(&node).await.map_err(ReconcileError::api("read Node", &node))?;
    Ok(match (find_loss(found.as_ref()), policy.trigger) {
        (Some(loss @ Loss::Deleted), RebuildTrigger::NodeDeleted | RebuildTrigger::OutOfServiceTaint)
        | (Some(loss @ Loss::OutOfService { .. }), RebuildTrigger::OutOfServiceTaint) => {
            Examined::Candidate(Box::new(Candidate { claim, persistent, node, loss, policy }))
        }
        _ => Examined::Healthy { node, version: found.and_then(|node| node.resource_version()) },
    })
}

/// Returns how the node is lost, if it is. A Node that is not ready and nothing else is not lost: it may come back at
/// any moment with its data.
fn find_loss(node: Option<&Node>) -> Option<Loss> {
    let Some(node) = node else { return Some(Loss::Deleted) };
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints = taints.filter(|taint| taint.key == OUT_OF_SERVICE);
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    // A running node writes to its volumes, whatever its taints
    let is_lost = taints.next().is_some() && ready.next().is_none() && node.metadata.deletion_timestamp.is_none();
    is_lost.then(|| Loss::OutOfService { uid: node.uid() })
}

/// Returns whether the PersistentVolume is of this driver and bound to exactly this claim.
fn is_bound_to(flavor: ApiFlavor, persistent: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(spec) = &persistent.spec else { return false };
    let is_ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == flavor.driver_name());
    let owner = spec.claim_ref.as_ref().and_then(|owner| owner.uid.as_ref());
    is_ours && owner.is_some() && owner == claim.metadata.uid.as_ref()
}

/// Returns the only node that the PersistentVolume can be used on. An agent answers the name of its Node as its
/// topology segment.
fn node_of(flavor: ApiFlavor, persistent: &PersistentVolume) -> Option<&str> {
    let required = persistent.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let [term] = &*required.node_selector_terms else { return None };
    let mut expressions = term.match_expressions.iter().flatten();
    let ours = expressions.find(|expression| expression.key == flavor.topology_key() && expression.operator == "In")?;
    match ours.values.as_deref() {
        Some([node]) => Some(node),
        _ => None,
    }
}
