//! Makes kube-scheduler avoid nodes for a pod that was refused there. Pure.
//!
//! kube-scheduler compares each claim of a pod separately, and may find the same node best each time it tries again. As
//! long as another node has enough free space for the whole pod, the refused nodes publish a little less than the
//! largest volume that the pod requests there.

use std::time::Duration;

use tokio::time::Instant;

use super::Wanted;
use crate::volume_classes::VolumeClasses;
use crate::volume_key::VolumeKey;

/// The longest time for which nodes are avoided: what external-provisioner needs to publish free space, once a minute
/// by default, and kube-scheduler to try again. The pod may not be able to run on the other node for another reason.
const TIMEOUT: Duration = Duration::from_mins(2);

/// A pod and the nodes that refused it.
#[derive(Clone, Debug)]
pub(crate) struct RefusedPod {
    /// The volumes that it is to get.
    pub(crate) volumes: Vec<Wanted>,
    nodes: Vec<Limit>,
    until: Instant,
}

/// The most bytes that a node may publish as free.
#[derive(Clone, Debug)]
struct Limit {
    node: Box<str>,
    classes: VolumeClasses,
    bytes: u64,
}

/// The nodes that are to be avoided for pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Avoidances(Vec<RefusedPod>);

impl RefusedPod {
    /// Returns whether the pod was refused on the node.
    pub(crate) fn avoids(&self, node: &str) -> bool {
        self.nodes.iter().any(|limit| &*limit.node == node)
    }

    fn wants(&self, volume: &VolumeKey) -> bool {
        self.volumes.iter().any(|wanted| wanted.key() == *volume)
    }
}

impl Avoidances {
    /// Has a node avoided for the pod of these volumes, because of those of one pair of classes.
    pub(crate) fn add(&mut self, node: &str, classes: &VolumeClasses, volumes: Vec<Wanted>, now: Instant) {
        let of_classes = volumes.iter().filter(|wanted| wanted.classes == *classes);
        let largest = of_classes.map(|wanted| wanted.bytes).max().unwrap_or(0);
        let limit = Limit { node: node.into(), classes: classes.clone(), bytes: largest.saturating_sub(1) };
        let until = now + TIMEOUT;
        let is_pod = |pod: &&mut RefusedPod| volumes.iter().any(|volume| pod.wants(&volume.key()));
        match self.0.iter_mut().find(is_pod) {
            Some(pod) => {
                pod.nodes.retain(|limit| &*limit.node != node);
                pod.nodes.push(limit);
                pod.until = until;
            }
            None => self.0.push(RefusedPod { volumes, nodes: vec![limit], until }),
        }
    }

    /// Ends it for the pod that gets this volume, or does not want it any more. Returns whether a node was avoided for
    /// it.
    pub(crate) fn end(&mut self, volume: &VolumeKey) -> bool {
        self.retain(|pod| !pod.wants(volume))
    }

    /// Ends it for those pods for which this is not true. Returns whether there was one.
    pub(crate) fn retain(&mut self, is_useful: impl Fn(&RefusedPod) -> bool) -> bool {
        self.0.extract_if(.., |pod| !is_useful(pod)).count() > 0
    }

    /// Forgets what is over. Returns whether that was anything.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.retain(|pod| now < pod.until)
    }

    /// Returns the time at which the next one is over.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.0.iter().map(|pod| pod.until).min()
    }

    /// Returns the most bytes that a node may publish as free for volumes of these classes; none if there is no limit.
    pub(crate) fn limit(&self, node: &str, classes: &VolumeClasses) -> Option<u64> {
        let here = |limit: &&Limit| &*limit.node == node && limit.classes == *classes;
        self.0.iter().flat_map(|pod| &pod.nodes).filter(here).map(|limit| limit.bytes).min()
    }
}
