//! Remembers on which occasion a claim was found to be lost first. What is found is believed when a later occasion,
//! with a grace period in between and no doubt meanwhile, finds the same.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::suspect::{Loss, Suspect};

/// Facts that were found of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Evidence {
    persistent_volume: Option<String>,
    node: String,
    loss: Loss,
}

/// The first occasions, by the UID of the claim. A new leader begins anew.
#[derive(Debug, Default)]
pub(super) struct Occasions {
    first: HashMap<String, (Evidence, Instant)>,
}

impl Occasions {
    /// Takes note of an occasion. Returns true when it was found to be so before, and the grace period has passed.
    pub(super) fn note(&mut self, suspect: &Suspect, grace_period: Duration) -> bool {
        let evidence = Evidence {
            persistent_volume: suspect.persistent.uid(),
            node: suspect.node.clone(),
            loss: suspect.loss.clone(),
        };
        let Some(uid) = suspect.claim.uid() else { return false };
        let now = Instant::now();
        match self.first.get(&uid) {
            Some((first, since)) if *first == evidence => now.duration_since(*since) >= grace_period,
            _ => {
                self.first.insert(uid, (evidence, now));
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

    /// Forgets the claims that were not found to be lost on this occasion.
    pub(super) fn retain(&mut self, claims: &HashSet<String>) {
        self.first.retain(|uid, _| claims.contains(uid));
    }
}
