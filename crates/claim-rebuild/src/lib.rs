//! Recreates the claims of lost nodes, empty, where the StorageClass or the claim requests it: deletes the claim of a
//! StatefulSet's pod together with the pod, so that the StatefulSet controller creates both on a node with free space.
//!
//! A node is lost when its Node object is deleted, or has the taint `node.kubernetes.io/out-of-service`; never because
//! it is not ready. Watches only show which claims to check. The proof is read from the API server in two observations
//! with a grace period in between. Any blocker restarts the grace period: an API server that lists nothing, or was
//! restored from a backup, deletes nothing.

mod args;
mod candidate;
mod observations;
mod replacement;
mod stateful_set;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource as _, ResourceExt};
use tokio::time::MissedTickBehavior;
use topolvm_api::claim::full_name;
use topolvm_api::{ApiFlavor, RebuildPolicies, RebuildPolicy, RebuildTrigger};
use topolvm_kube::{Cache, CachedClaim, EventPublisher, LogicalVolumes, ReconcileError, ReconcileMetrics};
use topolvm_runtime::error_chain;

pub use args::RebuildArgs;

use candidate::{Candidate, Examined, Loss, examine};
use observations::Observations;
use replacement::{abandon_replacement, finish_replacement, is_held, release_claim, replace_claim};
use stateful_set::find_owner;

/// Time between two checks, where the grace period is not shorter.
const INTERVAL: Duration = Duration::from_secs(30);
/// Nodes that are listed to see how many there are.
const COUNTED_NODES: u32 = 500;

/// The dependencies of the recreation of claims.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct RebuildContext {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The cache of Nodes.
    pub nodes: Cache<PartialObjectMeta<Node>>,
    /// The cache of LogicalVolumes.
    pub volumes: LogicalVolumes,
    /// The publisher of Events about claims.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
}

/// The controller of claims of lost nodes.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
pub struct Rebuild {
    context: RebuildContext,
    args: RebuildArgs,
    claims: Cache<CachedClaim>,
}

/// Memory from one check to the next.
#[derive(Debug, Default)]
struct Memory {
    observations: Observations,
    /// The version in which a Node was last read and in service, by name.
    healthy: HashMap<String, String>,
    /// Reasons why claims are not recreated, as Events have reported them, by UID.
    refused: HashMap<String, String>,
    /// Claims that were deleted, by full name: their UID, and the message for the Event about the new claim.
    replaced: HashMap<String, (Option<String>, String)>,
}

impl Rebuild {
    /// Makes the controller. `claims` has the annotations and finalizers of all claims that may be concerned.
    #[must_use]
    pub fn new(context: RebuildContext, args: RebuildArgs, claims: Cache<CachedClaim>) -> Self {
        Self { context, args, claims }
    }

    /// Checks now, and then every interval. If claims are not to be recreated, it releases those that are still held.
    pub async fn run(self) {
        let (nodes, volumes) = (&self.context.nodes, &self.context.volumes);
        // False only when the process ends
        if !nodes.wait_until_listed().await
            || !volumes.wait_until_listed().await
            || !self.claims.wait_until_listed().await
        {
            return;
        }
        let mut memory = Memory::default();
        let mut ticks = tokio::time::interval(INTERVAL.min(self.args.rebuild_grace_period));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.args.rebuild_claims {
                self.release_all().await;
                continue;
            }
            if let Err(error) = Box::pin(self.check(&mut memory)).await {
                // What was found before may be different by now
                memory.observations = Observations::default();
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot search for claims of lost nodes; trying again later"
                );
            }
        }
    }

    /// Releases the claims that an earlier setting, or another version, has held: no other component would.
    async fn release_all(&self) {
        for claim in self.claims.state().iter().filter(|claim| is_held(claim)) {
            let claim = claim.to_object();
            self.observe(&claim, Box::pin(abandon_replacement(&self.context, &claim))).await;
        }
    }

    /// Checks all claims once.
    async fn check(&self, memory: &mut Memory) -> Result<(), ReconcileError> {
        self.announce(memory).await;
        let claims = self.claims.state();
        for claim in claims.iter().filter(|claim| is_held(claim) && claim.is_deleting()) {
            let claim = claim.to_object();
            self.observe(&claim, Box::pin(finish_replacement(&self.context, &claim))).await;
        }
        let policies = list_policies(&self.context).await?;
        let live = || claims.iter().filter(|claim| !claim.is_deleting());
        let mut candidates = Vec::new();
        for claim in live() {
            candidates.extend(self.find_candidate(claim, &policies, memory).await);
        }
        let lost: HashSet<_> = candidates.iter().filter_map(|candidate| candidate.claim.uid()).collect();
        memory.observations.retain(&lost);
        let uids: HashSet<_> = claims.iter().filter_map(|claim| claim.uid()).collect();
        memory.refused.retain(|uid, _| uids.contains(uid.as_str()));
        // A leader has ended between two writes, and the node has come back
        for claim in live().filter(|claim| is_held(claim) && claim.uid().is_some_and(|uid| !lost.contains(uid))) {
            let claim = claim.to_object();
            self.observe(&claim, release_claim(&self.context, &claim, &claim.metadata)).await;
        }
        let blocker = self.find_blocker(&candidates).await?;
        for candidate in candidates {
            let step = self.reconcile(&candidate, blocker.as_deref(), memory);
            let done = self.context.metrics.observe("rebuild", step).await;
            if let Err(error) = done {
                let (claim, error) = (full_name(&candidate.claim), error_chain(&error));
                tracing::warn!(claim, error, "cannot recreate the claim; trying again later");
            }
        }
        Ok(())
    }

    /// Finds out whether the claim requests to be recreated, and whether its node seems to be lost.
    async fn find_candidate(
        &self,
        claim: &CachedClaim,
        policies: &RebuildPolicies,
        memory: &mut Memory,
    ) -> Option<Candidate> {
        let policy = match claim.rebuild_policy(policies) {
            Ok(policy) => policy,
            Err(error) => {
                self.refuse(&claim.to_object(), &error.to_string(), memory).await;
                return None;
            }
        };
        if !policy.is_on() || !self.may_be_lost(claim, policy, memory) {
            return None;
        }
        match examine(&self.context.client, self.context.flavor, policies, claim).await {
            Ok(Examined::Candidate(candidate)) => Some(*candidate),
            Ok(Examined::Healthy { node, version }) => {
                memory.healthy.insert(node, version.unwrap_or_default());
                None
            }
            Ok(Examined::NotConcerned) => None,
            Err(error) => {
                let claim = claim.full_name();
                tracing::warn!(
                    claim,
                    error = error_chain(&error),
                    "cannot determine whether the node of the claim is lost"
                );
                None
            }
        }
    }

    /// Returns false where the watches have no hint that the node of a claim is lost, so that a cluster in which
    /// nothing happens costs no request. Taints are not watched: a Node that has not changed has no new one.
    fn may_be_lost(&self, claim: &CachedClaim, policy: RebuildPolicy, memory: &Memory) -> bool {
        let Some(volume) = claim.volume_name() else { return false };
        let Some(volume) = self.context.volumes.get(volume) else { return true };
        let node = volume.spec.node_name.as_str();
        let Some(found) = self.context.nodes.get(&ObjectRef::new(node)) else { return true };
        let version = found.resource_version();
        policy.trigger == RebuildTrigger::OutOfServiceTaint && memory.healthy.get(node) != version.as_ref()
    }

    /// Returns why none of the losses is credible: the loss of so many nodes has one cause that an administrator has to
    /// check, such as an API server that has lost its objects.
    async fn find_blocker(&self, candidates: &[Candidate]) -> Result<Option<String>, ReconcileError> {
        let deleted = candidates.iter().filter(|candidate| candidate.loss == Loss::Deleted);
        let missing = deleted.map(|candidate| &candidate.node).collect::<HashSet<_>>().len();
        if missing == 0 {
            return Ok(None);
        }
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let listed = nodes.list_metadata(&ListParams::default().limit(COUNTED_NODES)).await;
        let count = listed.map_err(ReconcileError::api("list", "the Nodes"))?.items.len();
        Ok((missing > count).then(|| {
            format!(
                "{missing} Nodes with volumes are missing, but only {count} exist; check whether the API server has \
                 lost objects"
            )
        }))
    }

    /// Recreates the claim of a lost node, after the proof is complete and if its StatefulSet will create it.
    async fn reconcile(
        &self,
        candidate: &Candidate,
        blocker: Option<&str>,
        memory: &mut Memory,
    ) -> Result<(), ReconcileError> {
        let (claim, loss) = (&candidate.claim, candidate.describe_loss());
        let Some(owner) = self.find_stateful_set(claim).await? else {
            let why = format!(
                "{loss}, but no StatefulSet with a pod would recreate this claim; delete it manually if its data is \
                 not needed"
            );
            self.refuse(claim, &why, memory).await;
            return Ok(());
        };
        if let Some(blocker) = blocker.filter(|_| candidate.loss == Loss::Deleted) {
            self.refuse(claim, blocker, memory).await;
            // Believed only when it has been so for the grace period without this blocker
            memory.observations.forget(claim);
            return Ok(());
        }
        if !memory.observations.note(candidate, self.args.rebuild_grace_period) {
            return Ok(());
        }
        let volume = candidate.persistent.name_any();
        let kept = if candidate.policy.keeps_volume { "kept" } else { "not kept" };
        let note = format!(
            "{loss}, and the data of this claim is lost with it; claim and pod are deleted so that StatefulSet {owner} \
             recreates both, empty. PersistentVolume {volume} is {kept}"
        );
        replace_claim(&self.context, candidate, &note).await?;
        let note = format!(
            "this claim was recreated empty: {loss}, and the data of the previous claim is lost with it. Its \
             PersistentVolume {volume} is {kept}"
        );
        memory.replaced.insert(full_name(claim), (claim.uid(), note));
        Ok(())
    }

    /// Finds the name of the StatefulSet that makes the claim again.
    async fn find_stateful_set(&self, claim: &PersistentVolumeClaim) -> Result<Option<String>, ReconcileError> {
        let namespace = claim.namespace().unwrap_or_default();
        let sets: Api<StatefulSet> = Api::namespaced(self.context.client.clone(), &namespace);
        let listed = sets.list(&ListParams::default()).await;
        let sets =
            listed.map_err(ReconcileError::api("list the StatefulSets in the namespace of claim", full_name(claim)))?;
        Ok(find_owner(claim, &sets.items).map(ResourceExt::name_any))
    }

    /// Publishes once why a claim is not recreated.
    async fn refuse(&self, claim: &PersistentVolumeClaim, why: &str, memory: &mut Memory) {
        let uid = claim.uid().unwrap_or_default();
        if memory.refused.get(&uid).is_some_and(|reported| reported == why) {
            return;
        }
        let note = format!("the claim is not recreated: {why}");
        self.context.events.publish_warning(&claim.object_ref(&()), "RebuildRefused", "Rebuild", note).await;
        memory.refused.insert(uid, why.to_owned());
    }

    /// Publishes on recreated claims that they are empty, and why.
    async fn announce(&self, memory: &mut Memory) {
        if memory.replaced.is_empty() {
            return;
        }
        for claim in self.claims.state() {
            let name = claim.full_name();
            if memory.replaced.get(&name).is_none_or(|(old, _)| old.as_deref() == claim.uid()) {
                continue;
            }
            if let Some((_, note)) = memory.replaced.remove(&name) {
                let claim = claim.to_object().object_ref(&());
                self.context.events.publish_warning(&claim, "Rebuilt", "Rebuild", note).await;
            }
        }
    }

    /// Awaits a step about a claim, and logs its failure: the next check tries again.
    async fn observe(&self, claim: &PersistentVolumeClaim, step: impl Future<Output = Result<(), ReconcileError>>) {
        if let Err(error) = self.context.metrics.observe("rebuild", step).await {
            let claim = full_name(claim);
            tracing::warn!(
                claim,
                error = error_chain(&error),
                "cannot remove the finalizer of the claim; trying again later"
            );
        }
    }
}

/// Lists the policies of the StorageClasses of this driver.
async fn list_policies(context: &RebuildContext) -> Result<RebuildPolicies, ReconcileError> {
    let classes: Api<StorageClass> = Api::all(context.client.clone());
    let listed = classes.list(&ListParams::default()).await;
    let listed = listed.map_err(ReconcileError::api("list", "the StorageClasses"))?;
    Ok(RebuildPolicies::new(context.flavor, listed.items.iter()))
}

#[cfg(test)]
mod tests;
