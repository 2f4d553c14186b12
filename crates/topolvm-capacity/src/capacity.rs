//! Computes how many bytes are free after reservations.

mod admission;
mod avoidance;
mod hold;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use topolvm_api::{ApiFlavor, ListedClass, LogicalVolume};

pub use admission::{NotEnoughSpace, Wanted};
use avoidance::Avoidances;
pub use hold::Hold;

use crate::minimum_allocation::MinimumAllocation;
use crate::published::{NodeMeta, Published, PublishedNode};
use crate::reservations::{ClaimOfVolume, Exemption, Reservations};
use crate::storage_class::ClassParameters;
use crate::totals::Reservation;
use crate::volume_classes::VolumeClasses;
use crate::volume_key::VolumeKey;

/// The free bytes of all nodes after reservations: the largest volume that a node can have of a device class, with its
/// own options or those of an lvcreate option class, less the space that reserved volumes take from it, see
/// [`LayoutCapacity::taken_by`](topolvm_api::LayoutCapacity::taken_by). Clones share them.
#[derive(Clone)]
pub struct Capacity {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    /// The wall clock.
    now: fn() -> Timestamp,
}

struct State {
    published: Published,
    reservations: Reservations,
    avoidances: Avoidances,
    /// The time at which the totals are to be computed again.
    stale_at: Option<Instant>,
}

/// The effect of an event.
#[derive(Clone, Copy)]
struct Change {
    /// True if the totals may be others.
    of_totals: bool,
    /// True if those who wait for a change are notified in any case.
    is_reported: bool,
}

/// A node and its free bytes for volumes of certain classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeNode {
    /// Its name.
    pub name: String,
    /// Its free bytes.
    pub free: u64,
}

/// A device class of a node, with the capacity that its agent publishes and the reservations there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCapacity {
    /// Name of the node.
    pub node: String,
    /// Name of the device class; empty for a default class whose name is unknown.
    pub device_class: String,
    /// True for the default class.
    pub is_default: bool,
    /// Free bytes as the agent publishes them.
    pub free: u64,
    /// Bytes of these that are reserved for claims and volumes which are not on the disks yet.
    pub reserved: u64,
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity").finish_non_exhaustive()
    }
}

impl Capacity {
    /// Makes one that knows no objects yet. `now` is the wall clock.
    #[must_use]
    pub fn new(flavor: ApiFlavor, minimums: MinimumAllocation, now: fn() -> Timestamp) -> Self {
        let state = State {
            published: Published::new(flavor),
            reservations: Reservations::new(flavor, minimums),
            avoidances: Avoidances::default(),
            stale_at: None,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(()), now }) }
    }

    /// Applies an event of the watch of Nodes.
    pub fn apply_node(&self, event: &Event<NodeMeta>) {
        self.apply(|state, now| {
            let change = state.published.apply(event);
            if let Some(change) = change.as_ref().filter(|change| change.before != change.after) {
                let free = |node: &PublishedNode, classes: &VolumeClasses| node.free(classes).unwrap_or(0);
                let fallen_by = |classes: &VolumeClasses| {
                    free(&change.before, classes).saturating_sub(free(&change.after, classes))
                };
                state.reservations.publish(&change.node, fallen_by, now);
            }
            change.is_none_or(|change| change.before != change.after)
        });
    }

    /// Applies an event of the watch of `LogicalVolume`s.
    pub fn apply_volume(&self, event: &Event<LogicalVolume>) {
        self.apply_event(event, |state, now| {
            let is_changed = state.reservations.apply_volume(event, now);
            let key = |volume: &LogicalVolume| VolumeKey::from_name(volume.name());
            // It may have been asked of another replica
            let ends = matches!(event, Event::Apply(volume) if state.avoidances.end(&key(volume)));
            Change { of_totals: is_changed || ends, is_reported: ends || matches!(event, Event::InitDone) }
        });
    }

    /// Applies an event of the watch of claims. Returns the node that was selected for the claim, if the claim has been
    /// returned to the scheduler: then a replica has refused its volume there, see [`Self::avoid`].
    pub fn apply_claim(&self, event: &Event<PersistentVolumeClaim>) -> Option<Box<str>> {
        let wall_now = (self.shared.now)();
        let mut given_back_from = None;
        self.apply_event(event, |state, now| {
            let change = state.reservations.apply_claim(event, now, wall_now);
            given_back_from = change.given_back_from;
            let key =
                |claim: &PersistentVolumeClaim| VolumeKey::from_uid(claim.metadata.uid.as_deref().unwrap_or_default());
            let ends = matches!(event, Event::Delete(claim) if state.avoidances.end(&key(claim)));
            Change { of_totals: change.is_changed || ends, is_reported: ends || matches!(event, Event::InitDone) }
        });
        given_back_from
    }

    /// Applies an event of the watch of StorageClasses.
    pub fn apply_class(&self, event: &Event<StorageClass>) {
        self.apply(|state, _| {
            state.reservations.apply_class(event);
            true
        });
    }

    /// Applies an event, and notifies those who wait for a change. Most events change no total, above all while a large
    /// cluster is listed. What an entry of a list changes is computed when it is read, or at the end of the list.
    fn apply_event<K>(&self, event: &Event<K>, change: impl FnOnce(&mut State, Instant) -> Change) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let Change { of_totals, mut is_reported } = change(&mut state, now);
        if of_totals && matches!(event, Event::InitApply(_)) {
            state.stale_at = Some(now);
            is_reported = true;
        } else if of_totals || state.is_stale(now) {
            is_reported |= state.refresh(now);
        }
        drop(state);
        if is_reported {
            self.shared.changed.send_replace(());
        }
    }

    /// Changes the state, and notifies those who wait for a change.
    fn apply(&self, change: impl FnOnce(&mut State, Instant) -> bool) {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let has_changed = change(&mut state, now);
        let has_changed = state.refresh(now) || has_changed;
        drop(state);
        if has_changed {
            self.shared.changed.send_replace(());
        }
    }

    /// Reads the state as it is now: some reservations end automatically.
    fn read<T>(&self, read: impl FnOnce(&State, Instant) -> T) -> T {
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        if state.is_stale(now) {
            state.refresh(now);
        }
        read(&state, now)
    }

    /// Subscribes to changes from now on; several that come together may count as one. The automatic end of a
    /// reservation is no change, see [`Self::next_release`].
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    /// Returns the time at which the next reservation ends automatically, if nothing happens before.
    #[must_use]
    pub fn next_release(&self) -> Option<Instant> {
        self.read(|state, _| state.stale_at)
    }

    /// Returns whether Nodes, volumes, claims and StorageClasses have been listed once: then no reservation is missing.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.read(|state, _| state.published.is_listed() && state.reservations.is_listed())
    }

    /// Returns the free bytes for volumes of these classes on the node of a topology segment, which is mostly the
    /// node's name; none if there is no such node or device class.
    #[must_use]
    pub fn free_bytes(&self, segment: &str, classes: &VolumeClasses, own: &Exemption) -> Option<u64> {
        self.read(|state, _| {
            let (name, node) = state.published.find_by_segment(segment)?;
            state.free(name, node, classes, own)
        })
    }

    /// Returns whether the node of a topology segment exists and has published nothing yet, because its agent has just
    /// been started: that is not the same as no free bytes.
    #[must_use]
    pub fn is_unpublished(&self, segment: &str) -> bool {
        self.read(|state, _| state.published.find_by_segment(segment).is_some_and(|(_, node)| node.is_unpublished()))
    }

    /// Returns the free bytes for volumes of these classes on all nodes together.
    #[must_use]
    pub fn total_free_bytes(&self, classes: &VolumeClasses) -> u64 {
        self.read(|state, _| {
            let free = |(name, node)| state.free(name, node, classes, &Exemption::default());
            state.published.iter().filter_map(free).fold(0, u64::saturating_add)
        })
    }

    /// Returns the node with the most free bytes for volumes of these classes; of equals, the one whose name comes
    /// first.
    #[must_use]
    pub fn with_most_free_bytes(&self, classes: &VolumeClasses, own: &Exemption) -> Option<FreeNode> {
        self.read(|state, _| {
            let free = |(name, node)| Some((name, state.free(name, node, classes, own)?));
            let nodes = state.published.iter().filter_map(free);
            let (name, free) = nodes.min_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)))?;
            Some(FreeNode { name: name.to_owned(), free })
        })
    }

    /// Returns the nodes that have these classes with their free bytes, in the order of their names.
    #[must_use]
    pub fn free_nodes(&self, classes: &VolumeClasses, own: &Exemption) -> Vec<FreeNode> {
        let mut nodes: Vec<_> = self.read(|state, _| {
            let free = |(name, node): (&str, &PublishedNode)| {
                let free = state.free(name, node, classes, own)?;
                Some(FreeNode { name: name.to_owned(), free })
            };
            state.published.iter().filter_map(free).collect()
        });
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        nodes
    }

    /// Returns the names of the nodes that have device classes and no default one, each with the names of its classes.
    #[must_use]
    pub fn nodes_without_default_class(&self) -> Vec<(String, Vec<String>)> {
        self.read(|state, _| {
            let nodes = state.published.iter();
            nodes.filter_map(|(name, node)| Some((name.to_owned(), node.classes_without_default()?))).collect()
        })
    }

    /// Returns the device classes of all nodes, each once, in no order.
    #[must_use]
    pub fn device_classes(&self) -> Vec<ClassCapacity> {
        let none = Exemption::default();
        self.read(|state, _| {
            let of_node = |(name, node): (&str, &PublishedNode)| {
                let capacity = |class: ListedClass<'_>| ClassCapacity {
                    node: name.to_owned(),
                    device_class: class.name.to_owned(),
                    is_default: class.is_default,
                    free: class.free,
                    reserved: reserved(&state.reservations, name, node, &class.name.into(), &none),
                };
                node.listed_classes().into_iter().map(capacity).collect::<Vec<_>>()
            };
            state.published.iter().flat_map(of_node).collect()
        })
    }

    /// Returns the bytes that are reserved on the node of this name, as far as they reduce the free space for volumes
    /// of these classes.
    #[must_use]
    pub fn reserved_bytes(&self, node: &str, classes: &VolumeClasses, own: &Exemption) -> u64 {
        let unknown = PublishedNode::default();
        self.read(|state, _| {
            let published = state.published.get(node).unwrap_or(&unknown);
            reserved(&state.reservations, node, published, classes, own)
        })
    }

    /// Exempts a volume from the reservations, by the present or future name of its `LogicalVolume`: it is not refused
    /// because of its own reservation.
    #[must_use]
    pub fn exempt_volume(&self, name: &str) -> Exemption {
        self.read(|state, now| state.reservations.exempt_volume(name, now))
    }

    /// Returns the claim that waits for a volume of this name. When the watch is behind that of external-provisioner,
    /// it waits up to this long until it knows that a node is selected for the claim: it knows its pod by then, too.
    pub async fn waiting_claim(&self, volume: &str, patience: Duration) -> Option<ClaimOfVolume> {
        let mut changes = self.changes();
        let known = || self.read(|state, _| state.reservations.waiting_claim(volume));
        let settled =
            async { while !known().is_some_and(|claim| claim.is_settled) && changes.changed().await.is_ok() {} };
        // Names of another form are not those of claims
        if !patience.is_zero() && VolumeKey::from_name(volume).is_uuid() && self.is_listed() {
            drop(timeout(patience, settled).await);
        }
        known()
    }

    /// Exempts the claims of these names from the reservations: a rescheduled pod is not refused because of its own
    /// reservations.
    #[must_use]
    pub fn exempt_claims(&self, namespace: &str, names: &[&str]) -> Exemption {
        self.read(|state, now| state.reservations.exempt_claims(namespace, names, now))
    }

    /// Returns the topology segments of all nodes whose agent has registered, with the names of the nodes.
    #[must_use]
    pub fn segments(&self) -> Vec<String> {
        let segment = |(_, node): (&str, &PublishedNode)| node.segment().map(str::to_owned);
        self.read(|state, _| state.published.iter().filter_map(segment).collect())
    }

    /// Returns the StorageClasses of this driver by name.
    #[must_use]
    pub fn classes(&self) -> Vec<(String, ClassParameters)> {
        self.read(|state, _| {
            state.reservations.classes().map(|(name, class)| (name.to_owned(), class.clone())).collect()
        })
    }

    /// Returns the StorageClass of this name, if it is of this driver.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<ClassParameters> {
        self.read(|state, _| state.reservations.class(name).cloned())
    }

    /// Reserves bytes for a `LogicalVolume` that is about to be created, until the watch shows it.
    pub fn hold(&self, volume: &str, node: &str, classes: VolumeClasses, bytes: u64) -> Hold {
        let key = VolumeKey::from_name(volume);
        let reservation = Reservation { node: node.into(), classes, bytes };
        self.apply(|state, _| {
            state.reservations.begin_creation(key.clone(), reservation);
            false
        });
        Hold::new(self.clone(), key)
    }
}

impl State {
    fn is_stale(&self, now: Instant) -> bool {
        self.stale_at.is_some_and(|stale_at| stale_at <= now)
    }

    /// Computes the totals again, and returns whether they have changed.
    fn refresh(&mut self, now: Instant) -> bool {
        let has_changed = self.reservations.refresh(now) | self.avoidances.expire(now) | self.end_useless_avoidances();
        self.stale_at = self.reservations.next_end(now).into_iter().chain(self.avoidances.next_end()).min();
        has_changed
    }

    fn free(&self, name: &str, node: &PublishedNode, classes: &VolumeClasses, own: &Exemption) -> Option<u64> {
        let free = node.free(classes)?.saturating_sub(reserved(&self.reservations, name, node, classes, own));
        Some(self.avoidances.limit(name, classes).map_or(free, |limit| free.min(limit)))
    }
}

/// Returns the bytes that are reserved for others on a node, of the free space there for volumes of these classes.
fn reserved(
    reservations: &Reservations,
    name: &str,
    node: &PublishedNode,
    classes: &VolumeClasses,
    own: &Exemption,
) -> u64 {
    let of_others = |by: &VolumeClasses, bytes: u64| bytes.saturating_sub(own.bytes(name, by));
    let all = reservations.on_node(name);
    all.fold(0, |sum, (by, bytes)| sum.saturating_add(node.taken(classes, by, of_others(by, bytes))))
}

#[cfg(test)]
mod tests;
