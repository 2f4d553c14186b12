//! Remembers the first observation of each lost claim. A claim counts as lost when a later observation, after a grace
//! period without a blocker, finds the same.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::candidate::{Candidate, Loss};

/// Facts that were found of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    persistent_volume: Option<String>,
    node: String,
    loss: Loss,
}

/// First observations by the UID of the claim. A new leader starts again.
#[derive(Debug, Default)]
pub(super) struct Observations {
    first: HashMap<String, (Facts, Instant)>,
}

impl Observations {
    /// Records an observation. Returns true if the first one was the same and the grace period has passed since.
    pub(super) fn note(&mut self, candidate: &Candidate, grace_period: Duration) -> bool {
        let facts = Facts {
            persistent_volume: candidate.persistent.uid(),
            node: candidate.node.clone(),
            loss: candidate.loss.clone(),
        };
        let Some(uid) = candidate.claim.uid() else { return false };
        let now = Instant::now();
        match self.first.get(&uid) {
            Some((first, since)) if *first == facts => now.duration_since(*since) >= grace_period,
            _ => {
                self.first.insert(uid, (facts, now));
                false
            }
        }
    }

    /// Forgets a claim.
    pub(super) fn forget(&mut self, claim: &PersistentVolumeClaim) {
        if let Some(uid) = &claim.metadata.uid {
            self.first.remove(uid);
        }
    }

    /// Forgets the claims that were not found to be lost on this observation.
    pub(super) fn retain(&mut self, claims: &HashSet<String>) {
        self.first.retain(|uid, _| claims.contains(uid));
    }
}
