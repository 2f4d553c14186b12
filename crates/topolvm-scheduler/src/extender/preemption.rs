//! The JSON of a preemption: the nodes on which kube-scheduler would evict pods, and the victims on each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use topolvm_api::ApiFlavor;

use super::pod::Pod;
use super::{Error, Name};
use crate::binding_pods::PodIdentity;
use crate::capacity::Requested;

/// A request about a pod and the nodes on which it could run if the victims were evicted.
#[derive(Debug)]
pub(crate) struct PreemptionRequest<'a> {
    pub(crate) pod: PodIdentity,
    pub(crate) requested: Requested,
    pub(crate) candidates: Vec<PreemptionCandidate<'a>>,
}

/// A node, with the pods that would be evicted.
#[derive(Debug)]
pub(crate) struct PreemptionCandidate<'a> {
    pub(crate) node: Name<'a>,
    victims: Victims<MetaPod<'a>>,
    /// Bytes that are deleted with the victims, at most.
    freed: Requested,
}

/// An `ExtenderPreemptionArgs`. Old versions of Kubernetes write the names with a small first letter.
#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow, rename = "Pod", alias = "pod")]
    pod: Pod<'a>,
    /// Sent with `nodeCacheCapable: false`.
    #[serde(borrow, rename = "NodeNameToVictims", alias = "nodeNameToVictims")]
    victims: Option<BTreeMap<Name<'a>, Victims<Pod<'a>>>>,
    /// Sent with `nodeCacheCapable: true`.
    #[serde(borrow, rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    meta_victims: Option<BTreeMap<Name<'a>, Victims<MetaPod<'a>>>>,
}

/// The victims on a node, in the order of their priorities.
#[derive(Debug, Deserialize, Serialize)]
struct Victims<P> {
    #[serde(rename(deserialize = "Pods", serialize = "pods"), alias = "pods")]
    pods: Option<Vec<P>>,
    #[serde(
        default,
        rename(deserialize = "NumPDBViolations", serialize = "numPDBViolations"),
        alias = "numPDBViolations"
    )]
    pdb_violations: i64,
}

/// A pod by its UID.
#[derive(Debug, Deserialize, Serialize)]
struct MetaPod<'a> {
    #[serde(borrow, rename(deserialize = "UID", serialize = "uid"), alias = "uid")]
    uid: Name<'a>,
}

/// An `ExtenderPreemptionResult`.
#[derive(Debug, Serialize)]
pub(crate) struct PreemptionResult<'a> {
    #[serde(rename = "nodeNameToMetaVictims")]
    candidates: BTreeMap<&'a str, &'a Victims<MetaPod<'a>>>,
}

impl<'a> PreemptionRequest<'a> {
    pub(crate) fn parse(flavor: ApiFlavor, body: &'a [u8]) -> Result<Self, Error> {
        let Arguments { pod, victims, meta_victims } = serde_json::from_slice(body)?;
        let candidates = match (victims, meta_victims) {
            (Some(nodes), _) => {
                let nodes = nodes.into_iter();
                nodes.map(|(node, victims)| PreemptionCandidate::of_pods(flavor, node, victims)).collect()
            }
            (None, Some(nodes)) => {
                let nodes = nodes.into_iter();
                nodes.map(|(node, victims)| PreemptionCandidate { node, victims, freed: Requested::new() }).collect()
            }
            (None, None) => return Err(Error::Incomplete),
        };
        Ok(Self { pod: pod.identity(), requested: pod.requested(flavor), candidates })
    }
}

impl<'a> PreemptionCandidate<'a> {
    fn of_pods(flavor: ApiFlavor, node: Name<'a>, Victims { pods, pdb_violations }: Victims<Pod<'a>>) -> Self {
        let pods = pods.unwrap_or_default();
        let mut freed = Requested::new();
        for (class, bytes) in pods.iter().flat_map(|pod| pod.freed_by_eviction(flavor)) {
            let sum = freed.entry(class).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let pods = pods.into_iter().map(|pod| MetaPod { uid: pod.into_uid() }).collect();
        Self { node, victims: Victims { pods: Some(pods), pdb_violations }, freed }
    }

    /// Returns what must be free on the node now, so that the requested bytes are when the victims are gone.
    pub(crate) fn required(&self, requested: &Requested) -> Requested {
        let freed = |class: &str| self.freed.get(class).copied().unwrap_or_default();
        requested.iter().map(|(class, bytes)| (class.clone(), bytes.saturating_sub(freed(class)))).collect()
    }
}

impl<'a> FromIterator<&'a PreemptionCandidate<'a>> for PreemptionResult<'a> {
    fn from_iter<I: IntoIterator<Item = &'a PreemptionCandidate<'a>>>(candidates: I) -> Self {
        let candidates = candidates.into_iter().map(|candidate| (candidate.node.as_str(), &candidate.victims));
        Self { candidates: candidates.collect() }
    }
}
