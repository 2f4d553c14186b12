//! Derives from claims and `LogicalVolume`s the reserved bytes of each node. Pure.
//!
//! A volume is counted once: as its `LogicalVolume` from the moment that there is one, before as the request that
//! creates it, and before that as its claim. Totals are computed again from the present objects after each change of
//! what is reserved, so that the order of the changes does not matter.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::claim::{PendingClaim, selection_age};
use crate::listing::Listing;
use crate::minimum_allocation::MinimumAllocation;
use crate::storage_class::ClassParameters;
use crate::totals::{Reservation, Totals};
use crate::unsettled::{SETTLING_TIME, UnsettledBytes};
use crate::volume::VolumeBytes;
use crate::volume_classes::VolumeClasses;
use crate::volume_key::VolumeKey;

/// The longest time for which a claim reserves without a `LogicalVolume`. external-provisioner requests one at once; it
/// repeats a request that failed after five minutes at the latest, and returns the claim to the scheduler if the node
/// has not enough free space. If neither has happened it is gone.
pub(crate) const CLAIM_TIMEOUT: Duration = Duration::from_mins(5);

/// The time for which the space of a pod's other volumes is reserved. external-provisioner requests all of them at
/// once.
const SIBLING_TIMEOUT: Duration = Duration::from_secs(30);

/// Reservations that do not count for one who asks, because they are his own.
#[derive(Clone, Debug, Default)]
pub struct Exemption(Vec<Reservation>);

impl Exemption {
    pub(crate) fn bytes(&self, node: &str, classes: &VolumeClasses) -> u64 {
        let own = self.0.iter().filter(|reservation| &*reservation.node == node && reservation.classes == *classes);
        own.fold(0, |sum, reservation| sum.saturating_add(reservation.bytes))
    }
}

/// The claim that waits for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOfVolume {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// False as long as the watch has not shown a selected node for it, for which it waits.
    pub is_settled: bool,
}

/// A claim that waits for its volume.
#[derive(Clone, Debug)]
struct WaitingClaim {
    claim: PendingClaim,
    /// The end of its reservation, if a node is selected.
    until: Instant,
}

/// A `LogicalVolume` that is not as large as it should be.
#[derive(Clone, Debug)]
struct Volume {
    reservation: Reservation,
    on_disk: u64,
}

/// A `LogicalVolume` that is about to be created.
#[derive(Clone, Debug)]
struct Creation {
    reservation: Reservation,
    /// Set when it has been created: the watch shows it in a moment.
    until: Option<Instant>,
}

/// A volume that a pod needs on the node where another of its volumes is being made: it can be nowhere else.
#[derive(Clone, Debug)]
struct Sibling {
    reservation: Reservation,
    until: Instant,
}

/// The effect of an event of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClaimChange {
    /// False if all totals are what they were.
    pub(crate) is_changed: bool,
    /// The node that was selected for the claim, if the claim has been returned to the scheduler: external-provisioner
    /// does so with a claim whose volume was refused there.
    pub(crate) given_back_from: Option<Box<str>>,
}

/// The reserved bytes, and the objects from which they follow.
#[derive(Clone, Debug)]
pub(crate) struct Reservations {
    flavor: ApiFlavor,
    minimums: MinimumAllocation,
    classes: HashMap<Box<str>, ClassParameters>,
    class_listing: Listing<Box<str>>,
    claims: HashMap<VolumeKey, WaitingClaim>,
    claim_listing: Listing<VolumeKey>,
    /// By name; of all others it is enough to know that they exist.
    volumes: HashMap<Box<str>, Volume>,
    volume_keys: HashSet<VolumeKey>,
    volume_listing: Listing<Box<str>>,
    creations: HashMap<VolumeKey, Creation>,
    siblings: HashMap<VolumeKey, Sibling>,
    unsettled: UnsettledBytes,
    totals: Totals,
    /// Without the claims of which another node can still be selected.
    committed: Totals,
}

impl Reservations {
    pub(crate) fn new(flavor: ApiFlavor, minimums: MinimumAllocation) -> Self {
        Self {
            flavor,
            minimums,
            classes: HashMap::new(),
            class_listing: Listing::default(),
            claims: HashMap::new(),
            claim_listing: Listing::default(),
            volumes: HashMap::new(),
            volume_keys: HashSet::new(),
            volume_listing: Listing::default(),
            creations: HashMap::new(),
            siblings: HashMap::new(),
            unsettled: UnsettledBytes::default(),
            totals: Totals::default(),
            committed: Totals::default(),
        }
    }

    /// Returns whether claims, volumes and StorageClasses have been listed once.
    pub(crate) fn is_listed(&self) -> bool {
        self.class_listing.is_complete() && self.claim_listing.is_complete() && self.volume_listing.is_complete()
    }

    /// Returns the StorageClasses of this driver by name.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&str, &ClassParameters)> {
        self.classes.iter().map(|(name, class)| (&**name, class))
    }

    pub(crate) fn apply_class(&mut self, event: &Event<StorageClass>) {
        match event {
            Event::Init => self.class_listing.begin(),
            Event::InitDone => {
                let listed = self.class_listing.end();
                self.classes.retain(|name, _| listed.contains(name));
            }
            Event::Delete(class) => drop(self.classes.remove(&*class.name_any())),
            Event::Apply(class) | Event::InitApply(class) => {
                let name: Box<str> = class.name_any().into();
                match ClassParameters::from_class(self.flavor, class) {
                    Some(own) => drop(self.classes.insert(name.clone(), own)),
                    None => drop(self.classes.remove(&name)),
                }
                if matches!(event, Event::InitApply(_)) {
                    self.class_listing.add(name);
                }
            }
        }
    }

    /// Records a claim. `wall_now` is compared with the API server's clock.
    pub(crate) fn apply_claim(
        &mut self,
        event: &Event<PersistentVolumeClaim>,
        now: Instant,
        wall_now: Timestamp,
    ) -> ClaimChange {
        let key =
            |claim: &PersistentVolumeClaim| VolumeKey::from_uid(claim.metadata.uid.as_deref().unwrap_or_default());
        match event {
            Event::Init => {
                self.claim_listing.begin();
                ClaimChange::default()
            }
            Event::InitDone => {
                let listed = self.claim_listing.end();
                self.claims.retain(|key, _| listed.contains(key));
                ClaimChange { is_changed: true, given_back_from: None }
            }
            Event::Delete(claim) => {
                let waited = self.claims.remove(&key(claim)).is_some();
                let is_changed = self.siblings.remove(&key(claim)).is_some() || waited;
                ClaimChange { is_changed, given_back_from: None }
            }
            Event::Apply(claim) => self.set_claim(key(claim), claim, now + CLAIM_TIMEOUT),
            Event::InitApply(claim) => {
                // This process may be younger than the choice of the node
                let age = selection_age(claim, wall_now).unwrap_or_default();
                self.claim_listing.add(key(claim));
                self.set_claim(key(claim), claim, now + CLAIM_TIMEOUT.saturating_sub(age))
            }
        }
    }

    /// Stores a claim.
    fn set_claim(&mut self, key: VolumeKey, claim: &PersistentVolumeClaim, until: Instant) -> ClaimChange {
        let Some(claim) = PendingClaim::from_claim(self.flavor, claim) else {
            return ClaimChange { is_changed: self.claims.remove(&key).is_some(), given_back_from: None };
        };
        // The time counts from the choice of the node, whatever else changes
        let known = self.claims.remove(&key);
        let until = known.as_ref().filter(|known| known.claim.node == claim.node).map_or(until, |known| known.until);
        let is_changed = known.as_ref().is_none_or(|known| known.claim != claim || known.until != until);
        let given_back_from = known.and_then(|known| known.claim.node).filter(|_| claim.node.is_none());
        if given_back_from.is_some() {
            self.siblings.remove(&key);
        }
        self.claims.insert(key, WaitingClaim { claim, until });
        ClaimChange { is_changed, given_back_from }
    }

    /// Records a volume. Returns false if all totals are what they were.
    pub(crate) fn apply_volume(&mut self, event: &Event<LogicalVolume>, now: Instant) -> bool {
        match event {
            Event::Init => {
                self.volume_listing.begin();
                false
            }
            Event::InitDone => {
                let listed = self.volume_listing.end();
                self.volumes.retain(|name, _| listed.contains(name));
                self.volume_keys = listed.iter().map(|name| VolumeKey::from_name(name)).collect();
                true
            }
            Event::Delete(volume) => {
                self.volumes.remove(volume.name());
                self.volume_keys.remove(&VolumeKey::from_name(volume.name()));
                let classes = VolumeClasses::new(&volume.spec.device_class, &volume.spec.lvcreate_option_class);
                self.unsettled.remove(&volume.spec.node_name, &classes, VolumeBytes::from_object(volume).on_disk);
                true
            }
            Event::Apply(volume) => self.set_volume(volume, true, now),
            Event::InitApply(volume) => {
                // The age of those in the first list is unknown
                let is_later = self.volume_listing.is_complete();
                self.volume_listing.add(volume.name().into());
                self.set_volume(volume, is_later, now)
            }
        }
    }

    /// Stores a volume. Returns false if all totals are what they were.
    fn set_volume(&mut self, volume: &LogicalVolume, may_be_fresh: bool, now: Instant) -> bool {
        let bytes = VolumeBytes::from_object(volume);
        let key = VolumeKey::from_name(volume.name());
        let is_awaited =
            self.claims.contains_key(&key) || self.creations.contains_key(&key) || self.siblings.contains_key(&key);
        let is_new = self.volume_keys.insert(key);
        let known = self.volumes.remove(volume.name());
        let before = match &known {
            Some(known) => known.on_disk,
            None if is_new && may_be_fresh => 0,
            None => bytes.on_disk,
        };
        let node = volume.spec.node_name.as_str();
        let classes = VolumeClasses::new(&volume.spec.device_class, &volume.spec.lvcreate_option_class);
        let added = bytes.on_disk.saturating_sub(before);
        self.unsettled.add(node, &classes, added, now);
        let reservation = bytes.may_grow.then(|| Reservation { node: node.into(), classes, bytes: bytes.pending });
        let is_changed = known.map(|known| known.reservation) != reservation;
        if let Some(reservation) = reservation {
            self.volumes.insert(volume.name().into(), Volume { reservation, on_disk: bytes.on_disk });
        }
        is_changed || added > 0 || (is_awaited && is_new)
    }

    /// Reserves for a `LogicalVolume` that is about to be created.
    pub(crate) fn begin_creation(&mut self, key: VolumeKey, reservation: Reservation) {
        self.creations.insert(key, Creation { reservation, until: None });
    }

    /// Ends the reservation for a creation: at once if it has failed, else after the watch has shown the object.
    pub(crate) fn end_creation(&mut self, key: &VolumeKey, is_created: bool, now: Instant) {
        if is_created && let Some(creation) = self.creations.get_mut(key) {
            creation.until = Some(now + SETTLING_TIME);
        } else {
            self.creations.remove(key);
        }
    }

    /// Records the capacity that a node has published, of those classes in which it creates volumes. While it creates
    /// volumes of two option classes in one device class, their shares of the change are unknown, so that these stay
    /// reserved until their time is over.
    pub(crate) fn publish(&mut self, node: &str, fallen_by: impl Fn(&VolumeClasses) -> u64, now: Instant) {
        let reserved =
            self.volumes.values().map(|volume| &volume.reservation).filter(|reservation| &*reservation.node == node);
        let made = self.unsettled.on_disk().filter(|(on, ..)| *on == node).map(|(_, classes, _)| classes);
        let all: HashSet<VolumeClasses> =
            reserved.map(|reservation| &reservation.classes).chain(made).cloned().collect();
        let is_only = |classes: &&VolumeClasses| {
            all.iter().filter(|other| other.device_class == classes.device_class).count() == 1
        };
        for classes in all.iter().filter(is_only) {
            self.unsettled.publish(node, classes, fallen_by(classes), now);
        }
    }

    /// Computes the totals again, and returns whether they have changed.
    pub(crate) fn refresh(&mut self, now: Instant) -> bool {
        self.unsettled.expire(now);
        let keys = &self.volume_keys;
        let is_awaited = |creation: &Creation| creation.until.is_none_or(|until| now < until);
        self.creations
            .retain(|key, creation| is_awaited(creation) && !(creation.until.is_some() && keys.contains(key)));
        self.siblings.retain(|key, sibling| now < sibling.until && !keys.contains(key));
        let mut totals = Totals::default();
        self.volumes.values().for_each(|Volume { reservation, .. }| totals.add(reservation));
        for (node, classes, bytes) in self.unsettled.on_disk() {
            totals.add(&Reservation { node: node.into(), classes: classes.clone(), bytes });
        }
        self.unsettled.published().for_each(|(node, classes, bytes)| totals.subtract(node, classes, bytes));
        let begun = self.creations.keys().chain(self.siblings.keys().filter(|key| !self.creations.contains_key(key)));
        begun
            .filter_map(|key| self.reservation_without_volume(key, now))
            .for_each(|reservation| totals.add(&reservation));
        self.committed = totals.clone();
        let has_begun = |key: &VolumeKey| self.creations.contains_key(key) || self.siblings.contains_key(key);
        let selected = self.claims.keys().filter(|key| !has_begun(key));
        selected
            .filter_map(|key| self.reservation_without_volume(key, now))
            .for_each(|reservation| totals.add(&reservation));
        let has_changed = totals != self.totals;
        self.totals = totals;
        has_changed
    }

    /// Returns the reservation of a volume that has no object yet.
    fn reservation_without_volume(&self, key: &VolumeKey, now: Instant) -> Option<Reservation> {
        if self.volume_keys.contains(key) {
            return None;
        }
        if let Some(creation) = self.creations.get(key) {
            return Some(creation.reservation.clone());
        }
        if let Some(sibling) = self.siblings.get(key) {
            return Some(sibling.reservation.clone());
        }
        let WaitingClaim { claim, .. } = self.claims.get(key).filter(|selected| now < selected.until)?;
        let class = self.classes.get(&claim.class)?;
        let bytes = claim.bytes(class, &self.minimums);
        Some(Reservation { node: claim.node.clone()?, classes: class.classes.clone(), bytes })
    }

    /// Returns the time at which a reservation ends automatically.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        let selected = self.claims.values().filter(|waiting| waiting.claim.node.is_some());
        let claims = selected.map(|selected| selected.until).filter(|until| now < *until);
        let creations = self.creations.values().filter_map(|creation| creation.until);
        let siblings = self.siblings.values().map(|sibling| sibling.until).filter(|until| now < *until);
        claims.chain(creations).chain(siblings).chain(self.unsettled.next_end()).min()
    }

    /// Returns whether the space of a volume is reserved because another volume of its pod is being created on the
    /// node.
    pub(crate) fn is_sibling(&self, key: &VolumeKey, node: &str) -> bool {
        self.siblings.get(key).is_some_and(|sibling| &*sibling.reservation.node == node)
    }

    /// Reserves for the other volumes of a pod of which one is about to be created.
    pub(crate) fn add_siblings(&mut self, siblings: impl IntoIterator<Item = (VolumeKey, Reservation)>, now: Instant) {
        let until = now + SIBLING_TIMEOUT;
        self.siblings.extend(siblings.into_iter().map(|(key, reservation)| (key, Sibling { reservation, until })));
    }

    /// Iterates over the classes of the volumes of a node that are made, or can be nowhere else, and the bytes of each.
    pub(crate) fn committed_on_node(&self, node: &str) -> impl Iterator<Item = (&VolumeClasses, u64)> {
        self.committed.on_node(node)
    }

    /// Iterates over the classes of the volumes of a node and the bytes that are reserved for each.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = (&VolumeClasses, u64)> {
        self.totals.on_node(node)
    }

    /// Exempts a volume, as its `LogicalVolume` will be named.
    pub(crate) fn exempt_volume(&self, name: &str, now: Instant) -> Exemption {
        let own = [self.reservation_of_volume(name), self.reservation_without_volume(&VolumeKey::from_name(name), now)];
        Exemption(own.into_iter().flatten().collect())
    }

    /// Returns a StorageClass of this driver.
    pub(crate) fn class(&self, name: &str) -> Option<&ClassParameters> {
        self.classes.get(name)
    }

    /// Returns the classes and the bytes of the volume that CreateVolume will make for a claim.
    pub(crate) fn volume_of_claim(&self, claim: &PersistentVolumeClaim) -> Option<(VolumeClasses, u64)> {
        let claim = PendingClaim::from_claim(self.flavor, claim)?;
        let class = self.class(&claim.class)?;
        Some((class.classes.clone(), claim.bytes(class, &self.minimums)))
    }

    /// Returns the claim that waits for a volume.
    pub(crate) fn waiting_claim(&self, volume: &str) -> Option<ClaimOfVolume> {
        let claim = &self.claims.get(&VolumeKey::from_name(volume))?.claim;
        let binds_immediately = || self.classes.get(&claim.class).is_some_and(|class| !class.waits_for_consumer);
        let is_settled = claim.node.is_some() || binds_immediately();
        Some(ClaimOfVolume { namespace: claim.namespace.to_string(), name: claim.name.to_string(), is_settled })
    }

    /// Returns the volumes that claims of these names wait for: their keys, classes and bytes. Omits existing volumes,
    /// and those of other drivers.
    pub(crate) fn waiting_volumes(&self, namespace: &str, names: &[&str]) -> Vec<(VolumeKey, VolumeClasses, u64)> {
        let volume = |(key, WaitingClaim { claim, .. }): (&VolumeKey, &WaitingClaim)| {
            let class = self.classes.get(&claim.class).filter(|_| !self.volume_keys.contains(key))?;
            Some((key.clone(), class.classes.clone(), claim.bytes(class, &self.minimums)))
        };
        self.waiting_claims(namespace, names).filter_map(volume).collect()
    }

    fn waiting_claims(&self, namespace: &str, names: &[&str]) -> impl Iterator<Item = (&VolumeKey, &WaitingClaim)> {
        let is_meant = move |claim: &PendingClaim| &*claim.namespace == namespace && names.contains(&&*claim.name);
        self.claims.iter().filter(move |(_, waiting)| is_meant(&waiting.claim))
    }

    /// Exempts the claims of these names.
    pub(crate) fn exempt_claims(&self, namespace: &str, names: &[&str], now: Instant) -> Exemption {
        let meant: Vec<_> = self.waiting_claims(namespace, names).collect();
        let without_volume = meant.iter().filter_map(|(key, _)| self.reservation_without_volume(key, now));
        let is_theirs = |name: &str| meant.iter().any(|(key, _)| VolumeKey::from_name(name) == **key);
        let volumes = self.volumes.iter().filter(|(name, _)| !meant.is_empty() && is_theirs(name));
        Exemption(without_volume.chain(volumes.map(|(_, volume)| volume.reservation.clone())).collect())
    }

    fn reservation_of_volume(&self, name: &str) -> Option<Reservation> {
        self.volumes.get(name).map(|volume| volume.reservation.clone())
    }
}

#[cfg(test)]
mod tests;
