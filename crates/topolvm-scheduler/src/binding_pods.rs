//! Pods about which kube-scheduler was answered and whose claims have no selected node yet. Pure.
//!
//! kube-scheduler asks about the next pod while it still writes the selected node of the last one's claims. Until the
//! watch of claims shows that node, the last pod may go to each of the nodes in the answer.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::mem;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::time::Instant;
use topolvm_api::SELECTED_NODE;

use crate::capacity::Requested;

/// Time after which a pod is taken for one that kube-scheduler has not bound: it asks again when it tries again.
const BINDING_TIMEOUT: Duration = Duration::from_secs(10);

/// Pods that are remembered at the same time; beyond that the oldest are forgotten. kube-scheduler binds a hundred in a
/// second, and each takes milliseconds.
const MOST_PODS: usize = 256;

/// Hash of the namespace and name of a claim. There may be many thousand claims.
type ClaimHash = u64;
/// Hash of the name of a node. Two nodes with the same hash count as one, which only makes them appear fuller.
type NodeHash = u64;

/// The pod in question.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodIdentity {
    pub(crate) uid: Box<str>,
    pub(crate) namespace: Box<str>,
    /// Names of its claims, those of its ephemeral volumes too.
    pub(crate) claims: Vec<Box<str>>,
}

/// The pods whose claims wait for their node.
#[derive(Debug, Default)]
pub(crate) struct BindingPods {
    /// By UID.
    pods: HashMap<Box<str>, BindingPod>,
    /// Claims that have a node or a volume.
    placed: HashSet<ClaimHash>,
    /// The same of a list that is not complete yet.
    listing: HashSet<ClaimHash>,
    hasher: RandomState,
}

#[derive(Debug)]
struct BindingPod {
    requested: Requested,
    nodes: HashSet<NodeHash>,
    /// Those of its claims that have neither node nor volume.
    claims: HashSet<ClaimHash>,
    until: Instant,
}

impl BindingPods {
    /// Records that kube-scheduler may choose one of these nodes for a pod, and none of those in earlier answers.
    pub(crate) fn allow<'a>(
        &mut self,
        pod: &PodIdentity,
        requested: &Requested,
        nodes: impl Iterator<Item = &'a str>,
        now: Instant,
    ) {
        self.pods.retain(|uid, pod_before| *uid != pod.uid && now < pod_before.until);
        let claims = pod.claims.iter().map(|claim| self.hash(&pod.namespace, claim));
        let claims: HashSet<_> = claims.filter(|claim| !self.placed.contains(claim)).collect();
        let nodes: HashSet<_> = nodes.map(|node| self.hasher.hash_one(node)).collect();
        while self.pods.len() >= MOST_PODS {
            let oldest = self.pods.iter().min_by_key(|(_, pod)| pod.until).map(|(uid, _)| uid.clone());
            oldest.and_then(|oldest| self.pods.remove(&oldest));
        }
        if !claims.is_empty() && !nodes.is_empty() && !requested.is_empty() {
            let until = now + BINDING_TIMEOUT;
            self.pods.insert(pod.uid.clone(), BindingPod { requested: requested.clone(), nodes, claims, until });
        }
    }

    /// Returns the bytes of a device class that pods other than this one may take on a node.
    pub(crate) fn requested_bytes(&self, pod: &PodIdentity, node: &str, class: &str, now: Instant) -> u64 {
        let node = self.hasher.hash_one(node);
        let others = self.pods.iter().filter(|(uid, other)| **uid != pod.uid && now < other.until);
        let on_node = others.filter(|(_, other)| other.nodes.contains(&node));
        on_node.fold(0, |sum, (_, other)| sum.saturating_add(other.requested.get(class).copied().unwrap_or(0)))
    }

    /// Applies an event of the watch of claims.
    pub(crate) fn apply_claim(&mut self, event: &Event<PersistentVolumeClaim>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(claim) => {
                let hash = self.hash_of(claim);
                if is_placed(claim) {
                    self.listing.insert(hash);
                    self.place(hash);
                }
            }
            Event::InitDone => self.placed = mem::take(&mut self.listing),
            Event::Apply(claim) => {
                let hash = self.hash_of(claim);
                if is_placed(claim) {
                    self.placed.insert(hash);
                    self.place(hash);
                } else {
                    self.placed.remove(&hash);
                }
            }
            Event::Delete(claim) => {
                let hash = self.hash_of(claim);
                self.placed.remove(&hash);
                // A claim that has gone is not bound any more
                self.place(hash);
            }
        }
    }

    /// Takes a claim off the pods that wait for it, and a pod off the table with its last claim.
    fn place(&mut self, claim: ClaimHash) {
        self.pods.retain(|_, pod| !pod.claims.remove(&claim) || !pod.claims.is_empty());
    }

    fn hash_of(&self, claim: &PersistentVolumeClaim) -> ClaimHash {
        self.hash(&claim.namespace().unwrap_or_default(), &claim.name_any())
    }

    fn hash(&self, namespace: &str, name: &str) -> ClaimHash {
        self.hasher.hash_one((namespace, name))
    }
}

/// Returns whether a claim has a selected node or a volume.
fn is_placed(claim: &PersistentVolumeClaim) -> bool {
    let has_volume =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()).is_some_and(|name| !name.is_empty());
    has_volume || claim.annotations().get(SELECTED_NODE).is_some_and(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::fixtures::claim;

    use super::*;

    const NODE: &str = "n1";

    fn pod(uid: &str, claims: &[&str]) -> PodIdentity {
        let claims = claims.iter().map(|&claim| claim.into()).collect();
        PodIdentity { uid: uid.into(), namespace: "default".into(), claims }
    }

    /// Bytes that others than pod `b` may take on the node.
    fn taken(pods: &BindingPods) -> u64 {
        pods.requested_bytes(&pod("b", &[]), NODE, "ssd", Instant::now())
    }

    fn allow_on(pods: &mut BindingPods, pod: &PodIdentity, bytes: u64, nodes: &[&str]) {
        let requested = Requested::from([("ssd".to_owned(), bytes)]);
        pods.allow(pod, &requested, nodes.iter().copied(), Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn pod_reserves_on_allowed_nodes_until_its_claims_have_a_node() {
        let mut pods = BindingPods::default();
        allow_on(&mut pods, &pod("a", &["x", "y"]), 5, &[NODE, "n2"]);
        assert_eq!(taken(&pods), 5);
        assert_eq!(pods.requested_bytes(&pod("b", &[]), "n3", "ssd", Instant::now()), 0);
        assert_eq!(pods.requested_bytes(&pod("b", &[]), NODE, "hdd", Instant::now()), 0);
        assert_eq!(pods.requested_bytes(&pod("a", &[]), NODE, "ssd", Instant::now()), 0);
        pods.apply_claim(&Event::Apply(claim("x").selected_node("n2").build()));
        pods.apply_claim(&Event::Apply(claim("y").build()));
        assert_eq!(taken(&pods), 5);
        pods.apply_claim(&Event::Apply(claim("y").selected_node("n2").build()));
        assert_eq!(taken(&pods), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_answered_last_counts_and_not_forever() {
        let mut pods = BindingPods::default();
        allow_on(&mut pods, &pod("a", &["x"]), 5, &[NODE]);
        allow_on(&mut pods, &pod("c", &["z"]), 3, &[NODE]);
        assert_eq!(taken(&pods), 8);
        allow_on(&mut pods, &pod("a", &["x"]), 5, &["n2"]);
        assert_eq!(taken(&pods), 3);
        tokio::time::advance(BINDING_TIMEOUT).await;
        assert_eq!(taken(&pods), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_very_many_pods_the_oldest_are_forgotten() {
        let mut pods = BindingPods::default();
        for number in 0..=MOST_PODS {
            allow_on(&mut pods, &pod(&number.to_string(), &["x"]), 1, &[NODE]);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(taken(&pods), u64::try_from(MOST_PODS).unwrap());
        assert!(!pods.pods.contains_key("0"));
    }

    #[tokio::test(start_paused = true)]
    async fn claims_that_have_a_node_or_have_gone_are_not_waited_for() {
        let mut pods = BindingPods::default();
        for event in [Event::Init, Event::InitApply(claim("x").bound_to("pv").build()), Event::InitDone] {
            pods.apply_claim(&event);
        }
        allow_on(&mut pods, &pod("a", &["x"]), 5, &[NODE]);
        assert_eq!(taken(&pods), 0);
        allow_on(&mut pods, &pod("c", &["z"]), 3, &[NODE]);
        pods.apply_claim(&Event::Delete(claim("z").build()));
        assert_eq!(taken(&pods), 0);
        // Taken back by external-provisioner, because the node is full
        pods.apply_claim(&Event::Apply(claim("x").build()));
        allow_on(&mut pods, &pod("a", &["x"]), 5, &[NODE]);
        assert_eq!(taken(&pods), 5);
    }
}
