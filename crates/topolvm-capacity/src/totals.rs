//! Sums of bytes by node and the classes of volumes.

use std::collections::{BTreeMap, HashMap};

use crate::volume_classes::VolumeClasses;

/// Bytes of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) node: Box<str>,
    pub(crate) classes: VolumeClasses,
    pub(crate) bytes: u64,
}

/// Bytes by node and the classes of volumes; none are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals(HashMap<Box<str>, BTreeMap<VolumeClasses, u64>>);

impl Totals {
    pub(crate) fn add(&mut self, reservation: &Reservation) {
        if reservation.bytes > 0 {
            let sums = self.0.entry(reservation.node.clone()).or_default();
            let sum = sums.entry(reservation.classes.clone()).or_default();
            *sum = sum.saturating_add(reservation.bytes);
        }
    }

    pub(crate) fn subtract(&mut self, node: &str, classes: &VolumeClasses, bytes: u64) {
        let Some(sums) = self.0.get_mut(node) else { return };
        let Some(sum) = sums.get_mut(classes) else { return };
        *sum = sum.saturating_sub(bytes);
        sums.retain(|_, bytes| *bytes > 0);
        if sums.is_empty() {
            self.0.remove(node);
        }
    }

    /// Iterates over the classes of the volumes of a node and the bytes of each.
    pub(crate) fn on_node(&self, node: &str) -> impl Iterator<Item = (&VolumeClasses, u64)> {
        self.0.get(node).into_iter().flatten().map(|(classes, bytes)| (classes, *bytes))
    }
}
