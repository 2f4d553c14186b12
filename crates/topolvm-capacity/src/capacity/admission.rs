//! Admits the volumes of a pod to a node, together or not at all.
//!
//! kube-scheduler compares each claim separately with the free space of a moment ago, so that it selects a node for
//! more pods than fit. If one volume of a pod has been created, and another does not fit, the pod can go to no other
//! node any more. Therefore the first volume of a pod reserves the space of all of them, and others get the rest. A
//! claim whose pod has no volume yet reserves nothing here, because its pod can go elsewhere.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;

use super::{Capacity, Hold, State, reserved};
use crate::published::PublishedNode;
use crate::reservations::Exemption;
use crate::totals::Reservation;
use crate::volume_classes::VolumeClasses;
use crate::volume_key::VolumeKey;

/// A volume that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The name of its `LogicalVolume`.
    pub name: String,
    /// Its classes.
    pub classes: VolumeClasses,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The node has not enough free space for the volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEnoughSpace {
    /// The device class of which too little is free.
    pub device_class: String,
    /// The bytes that the volumes take together of what is free in it.
    pub wanted: u64,
    /// The bytes that are free in it, after the reservations of volumes that can be nowhere else.
    pub free: u64,
}

impl Capacity {
    /// Returns whether there is a StorageClass of this name and driver.
    #[must_use]
    pub fn has_class(&self, name: &str) -> bool {
        self.read(|state, _| state.reservations.class(name).is_some())
    }

    /// Returns the volume that CreateVolume will make for a claim; `None` if the claim has its volume, is being
    /// deleted, or is another driver's.
    #[must_use]
    pub fn volume_of_claim(&self, claim: &PersistentVolumeClaim) -> Option<Wanted> {
        let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default());
        self.read(|state, _| {
            let (classes, bytes) = state.reservations.volume_of_claim(claim)?;
            Some(Wanted { name, classes, bytes })
        })
    }

    /// Reserves for a `LogicalVolume` that is about to be created, until the watch shows it, and for a while for the
    /// other volumes that its pod needs. Fails if the node does not have enough free space for all of them, unless the
    /// space of this one has been reserved as that of such a sibling. A volume without siblings that is larger than the
    /// published capacity of the node is left to the node to refuse.
    pub fn admit(&self, node: &str, volume: &Wanted, siblings: &[Wanted]) -> Result<Hold, NotEnoughSpace> {
        let key = volume.key();
        let mut outcome = Ok(());
        self.apply(|state, now| {
            if !state.reservations.is_sibling(&key, node) {
                outcome = state.reserve_for_siblings(node, volume, siblings, now);
            }
            if outcome.is_err() {
                return true;
            }
            state.reservations.begin_creation(key.clone(), volume.reservation(node));
            state.avoidances.end(&key)
        });
        outcome.map(|()| Hold::new(self.clone(), key))
    }

    /// Makes the scheduler avoid a node for the pod with these claims, of which one was returned to the scheduler
    /// because its volume was refused there: perhaps by another replica than this, which publishes the capacity for
    /// kube-scheduler. Does nothing for a pod with a single claim, or if there is enough free space for all of them by
    /// now.
    pub fn avoid(&self, node: &str, namespace: &str, claims: &[String]) {
        let names: Vec<&str> = claims.iter().map(String::as_str).collect();
        self.apply(|state, now| state.avoid(node, namespace, &names, now));
    }
}

impl Wanted {
    /// Returns the key of its claim.
    pub(crate) fn key(&self) -> VolumeKey {
        VolumeKey::from_name(&self.name)
    }

    fn reservation(&self, node: &str) -> Reservation {
        Reservation { node: node.into(), classes: self.classes.clone(), bytes: self.bytes }
    }
}

impl State {
    /// Reserves for the siblings of a volume if there is enough free space for all of them; else makes the scheduler
    /// avoid the node.
    fn reserve_for_siblings(
        &mut self,
        node: &str,
        volume: &Wanted,
        siblings: &[Wanted],
        now: Instant,
    ) -> Result<(), NotEnoughSpace> {
        let all: Vec<Wanted> = std::iter::once(volume).chain(siblings).cloned().collect();
        if let Some((name, published)) = self.published.find_by_segment(node)
            && let Err((classes, refused)) = check_space(published, &all, |by| self.committed(name, published, by))
        {
            let (name, classes) = (name.to_owned(), classes.clone());
            if !siblings.is_empty() {
                self.avoidances.add(&name, &classes, all, now);
            }
            return Err(refused);
        }
        let siblings = siblings.iter().map(|sibling| (sibling.key(), sibling.reservation(node)));
        self.reservations.add_siblings(siblings, now);
        Ok(())
    }

    /// Makes the scheduler avoid a node for a pod, unless it has enough free space for all claims of the pod. Returns
    /// whether it is avoided.
    fn avoid(&mut self, node: &str, namespace: &str, claims: &[&str], now: Instant) -> bool {
        let waiting = self.reservations.waiting_volumes(namespace, claims).into_iter();
        let all: Vec<Wanted> =
            waiting.map(|(key, classes, bytes)| Wanted { name: format!("pvc-{key}"), classes, bytes }).collect();
        let Some(published) = self.published.get(node).filter(|_| all.len() > 1) else { return false };
        // All reservations count, of claims too whose pods can still go elsewhere: which came first is known to the
        // replica that refused alone
        let own = self.reservations.exempt_claims(namespace, claims, now);
        let reserved = |classes: &VolumeClasses| reserved(&self.reservations, node, published, classes, &own);
        let Err((classes, _)) = check_space(published, &all, reserved) else { return false };
        let classes = classes.clone();
        self.avoidances.add(node, &classes, all, now);
        true
    }

    /// Ends the avoidances for pods that fit on no other node. Returns whether there was any.
    pub(super) fn end_useless_avoidances(&mut self) -> bool {
        let Self { published, reservations, avoidances, .. } = self;
        let own = Exemption::default();
        avoidances.retain(|pod| {
            published.iter().any(|(name, node)| {
                let has_classes = pod.volumes.iter().all(|wanted| node.free(&wanted.classes).is_some());
                let reserved = |classes: &VolumeClasses| reserved(reservations, name, node, classes, &own);
                !pod.avoids(name) && has_classes && check_space(node, &pod.volumes, reserved).is_ok()
            })
        })
    }

    fn committed(&self, name: &str, node: &PublishedNode, classes: &VolumeClasses) -> u64 {
        let committed = self.reservations.committed_on_node(name);
        committed.fold(0, |sum, (by, bytes)| sum.saturating_add(node.taken(classes, by, bytes)))
    }
}

/// Checks that a node has enough free space for all of these volumes in addition to the bytes that are reserved there.
/// The error has the classes for which it does not.
fn check_space<'w>(
    node: &PublishedNode,
    all: &'w [Wanted],
    reserved: impl Fn(&VolumeClasses) -> u64,
) -> Result<(), (&'w VolumeClasses, NotEnoughSpace)> {
    for classes in all.iter().map(|wanted| &wanted.classes) {
        let Some(free) = node.free(classes) else { continue };
        let taken = all.iter().map(|wanted| node.taken(classes, &wanted.classes, wanted.bytes));
        let wanted = taken.fold(0, u64::saturating_add);
        if all.len() == 1 && free < wanted {
            continue;
        }
        let free = free.saturating_sub(reserved(classes));
        if free < wanted {
            let device_class = classes.device_class.to_string();
            return Err((classes, NotEnoughSpace { device_class, wanted, free }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
