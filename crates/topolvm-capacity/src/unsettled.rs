//! Keeps bytes reserved that are on the disks of a node which has not published its capacity since. Pure.
//!
//! A node agent writes the status of a volume and the capacity of its Node by two requests in no order, and capacity at
//! most every quarter of a second. What a volume takes is counted until the published capacity has fallen by as much;
//! when that came first, the bytes by which it has fallen are no longer counted for volumes that are being made.

use std::time::Duration;

use tokio::time::Instant;

use crate::volume_classes::VolumeClasses;

/// The longest time for which bytes on the disks stay reserved. In it the agent has published them, on a machine and an
/// API server with too much to do as well, or the node would be given more than it has; where the capacity falls by
/// less, because something else was removed at the same time, nothing else ends the reservation.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(5);

/// The longest time for which bytes that a published capacity has fallen by are attributed to volumes that are being
/// created. Shorter, because they may belong to others: then more than the free space would be given away.
const CREDIT_TIME: Duration = Duration::from_secs(1);

/// Bytes of volumes on a node.
#[derive(Clone, Debug)]
struct Entry {
    node: Box<str>,
    classes: VolumeClasses,
    bytes: u64,
    until: Instant,
}

/// Bytes on the disks that no published capacity counts yet, and the other way round.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnsettledBytes {
    on_disk: Vec<Entry>,
    published: Vec<Entry>,
}

impl UnsettledBytes {
    /// Adds bytes that are on the disks of a node according to the node.
    pub(crate) fn add(&mut self, node: &str, classes: &VolumeClasses, bytes: u64, now: Instant) {
        self.expire(now);
        let rest = subtract(&mut self.published, node, classes, bytes);
        push(&mut self.on_disk, node, classes, rest, now + SETTLING_TIME);
    }

    /// Records bytes that a node has freed: as much of its unpublished bytes need not be reserved, because it has not
    /// published the freed bytes either.
    pub(crate) fn remove(&mut self, node: &str, classes: &VolumeClasses, bytes: u64) {
        subtract(&mut self.on_disk, node, classes, bytes);
    }

    /// Takes note of the capacity that a node has published: it has fallen by this many bytes.
    pub(crate) fn publish(&mut self, node: &str, classes: &VolumeClasses, bytes: u64, now: Instant) {
        self.expire(now);
        let rest = subtract(&mut self.on_disk, node, classes, bytes);
        push(&mut self.published, node, classes, rest, now + CREDIT_TIME);
    }

    /// Forgets what is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.on_disk.retain(|entry| now < entry.until);
        self.published.retain(|entry| now < entry.until);
    }

    /// Returns the time at which something is over.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.on_disk.iter().chain(&self.published).map(|entry| entry.until).min()
    }

    /// Iterates over nodes, classes of volumes and bytes that are still reserved.
    pub(crate) fn on_disk(&self) -> impl Iterator<Item = (&str, &VolumeClasses, u64)> {
        self.on_disk.iter().map(Entry::parts)
    }

    /// Iterates over nodes, classes of volumes and bytes that are published of volumes whose status does not contain
    /// them yet.
    pub(crate) fn published(&self) -> impl Iterator<Item = (&str, &VolumeClasses, u64)> {
        self.published.iter().map(Entry::parts)
    }
}

impl Entry {
    fn parts(&self) -> (&str, &VolumeClasses, u64) {
        (&self.node, &self.classes, self.bytes)
    }
}

/// Subtracts bytes from the entries of these classes, the oldest first, and returns what is left of the bytes.
fn subtract(entries: &mut Vec<Entry>, node: &str, classes: &VolumeClasses, bytes: u64) -> u64 {
    let mut rest = bytes;
    for entry in entries.iter_mut().filter(|entry| &*entry.node == node && entry.classes == *classes) {
        let taken = entry.bytes.min(rest);
        entry.bytes -= taken;
        rest -= taken;
    }
    entries.retain(|entry| entry.bytes > 0);
    rest
}

fn push(entries: &mut Vec<Entry>, node: &str, classes: &VolumeClasses, bytes: u64, until: Instant) {
    if bytes > 0 {
        entries.push(Entry { node: node.into(), classes: classes.clone(), bytes, until });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(unsettled: &UnsettledBytes) -> u64 {
        unsettled.on_disk().map(|(_, _, bytes)| bytes).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_reserved_until_the_capacity_has_fallen_by_as_many() {
        let (mut unsettled, now) = (UnsettledBytes::default(), Instant::now());
        unsettled.add("n1", &"ssd".into(), 5, now);
        unsettled.add("n1", &"ssd".into(), 3, now);
        unsettled.publish("n1", &"".into(), 8, now);
        unsettled.publish("n2", &"ssd".into(), 8, now);
        assert_eq!(reserved(&unsettled), 8);
        unsettled.publish("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&unsettled), 3);
        unsettled.publish("n1", &"ssd".into(), 4, now);
        assert_eq!(reserved(&unsettled), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn unsettled_reservation_ends_when_its_volume_is_removed() {
        let (mut unsettled, now) = (UnsettledBytes::default(), Instant::now());
        unsettled.add("n1", &"ssd".into(), 5, now);
        unsettled.add("n1", &"ssd".into(), 3, now);
        unsettled.remove("n1", &"ssd".into(), 5);
        unsettled.remove("n2", &"ssd".into(), 5);
        assert_eq!(reserved(&unsettled), 3);
        unsettled.remove("n1", &"ssd".into(), 4);
        unsettled.add("n1", &"ssd".into(), 2, now);
        assert_eq!(reserved(&unsettled), 2, "what was given back long before does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_capacity_that_was_published_before_counts_as_well() {
        let (mut unsettled, now) = (UnsettledBytes::default(), Instant::now());
        unsettled.publish("n1", &"ssd".into(), 5, now);
        unsettled.add("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&unsettled), 0);
        unsettled.add("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&unsettled), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn unsettled_reservation_expires_after_five_seconds() {
        let (mut unsettled, now) = (UnsettledBytes::default(), Instant::now());
        unsettled.add("n1", &"ssd".into(), 5, now);
        assert_eq!(unsettled.next_end(), Some(now + SETTLING_TIME));
        unsettled.expire(now + Duration::from_millis(4999));
        assert_eq!(reserved(&unsettled), 5);
        unsettled.expire(now + SETTLING_TIME);
        assert_eq!((reserved(&unsettled), unsettled.next_end()), (0, None));
    }
}
