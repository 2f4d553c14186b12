//! The proof that an LV is unused: pure functions from the facts to the first blocker.

use crate::candidate::Candidate;
use crate::server::{ObjectState, ServerState};

/// Most LVs of a node that may lose their objects at a time by mistakes of single ones.
const MOST_AT_ONCE: usize = 10;

/// Numbers of LVs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// All that were made for objects.
    pub(crate) volumes: usize,
    /// Those without an object that are to be put into quarantine, or to be removed from there.
    pub(crate) orphans: usize,
}

impl Counts {
    /// Returns how many may be orphans before something else must be the reason: a tenth of the node's LVs.
    pub(crate) fn limit(self) -> usize {
        (self.volumes / 10).clamp(1, MOST_AT_ONCE)
    }
}

/// Observations in the cluster about one LV. Empty if the cluster was not queried.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterFacts {
    /// State of the object that it was made for.
    pub(crate) object: ObjectState,
    /// Name of a PersistentVolume with the name of the object.
    pub(crate) persistent_volume: Option<String>,
    /// True if a device node of the LV is in use, or if that is unknown.
    pub(crate) is_in_use: bool,
}

/// Reason for which an LV without an object is left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Blocker {
    #[error("it has no tags that name its creator, its LogicalVolume and its cluster")]
    Unmarked,
    #[error("it is read-only like a snapshot, and a VolumeSnapshotContent may refer to it")]
    Snapshot,
    #[error("its LogicalVolume belongs to node {0}, so its disk was moved to this node")]
    Elsewhere(String),
    #[error("a new LogicalVolume of the same name waits for it; see the message in its status")]
    Awaited,
    #[error("it was created in another cluster")]
    OtherCluster,
    #[error("the API server lists no LogicalVolume of this node")]
    NothingListed,
    #[error("it is newer than the newest known object of the API server, which may have been restored from a backup")]
    Forgotten,
    #[error("PersistentVolume {0} still exists")]
    PersistentVolume(String),
    #[error("its device is in use")]
    InUse,
    #[error(
        "{orphans} LVs of this node lost their LogicalVolumes at the same time; more than {limit} are not handled \
         automatically"
    )]
    TooMany { orphans: usize, limit: usize },
}

/// Returns the first reason to leave an LV alone; `None` proves that it is unused.
pub(crate) fn find_blocker(
    candidate: &Candidate,
    server: &ServerState,
    facts: &ClusterFacts,
    counts: Counts,
) -> Option<Blocker> {
    let (true, Some(_), Some(cluster), Some(created)) =
        (candidate.is_managed, &candidate.object, &candidate.cluster, candidate.created)
    else {
        return Some(Blocker::Unmarked);
    };
    if !candidate.is_writable {
        return Some(Blocker::Snapshot);
    }
    match &facts.object {
        ObjectState::Gone => {}
        ObjectState::Exists(volume) => return Some(Blocker::Elsewhere(volume.spec.node_name.clone())),
        ObjectState::Waits => return Some(Blocker::Awaited),
    }
    if *cluster != server.cluster {
        return Some(Blocker::OtherCluster);
    }
    if server.objects == 0 {
        return Some(Blocker::NothingListed);
    }
    if server.remembers_until.is_none_or(|until| created > until) {
        return Some(Blocker::Forgotten);
    }
    if let Some(name) = &facts.persistent_volume {
        return Some(Blocker::PersistentVolume(name.clone()));
    }
    if facts.is_in_use {
        return Some(Blocker::InUse);
    }
    let limit = counts.limit();
    (counts.orphans > limit).then_some(Blocker::TooMany { orphans: counts.orphans, limit })
}

#[cfg(test)]
mod tests;
