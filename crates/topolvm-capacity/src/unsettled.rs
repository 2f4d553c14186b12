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
pub(crate) const LANDING_TIME: Duration = Duration::from_secs(5);

/// The longest time for which bytes that a published capacity has fallen by are taken for volumes that are being made.
/// Shorter, because they may be somebody else's: then more than there is would be given away.
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
pub(crate) struct Landings {
    on_disk: Vec<Entry>,
    published: Vec<Entry>,
}

impl Landings {
    /// Adds bytes that a node says to be on its disks.
    pub(crate) fn add(&mut self, node: &str, classes: &VolumeClasses, bytes: u64, now: Instant) {
        self.expire(now);
        let rest = subtract(&mut self.published, node, classes, bytes);
        push(&mut self.on_disk, node, classes, rest, now + LANDING_TIME);
    }

    /// Takes note of bytes that a node has given back: as much of what it has not published yet need not be reserved,
    /// because it has not published this either.
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

    /// Iterates over nodes, classes of volumes and bytes that are published of volumes whose status says nothing yet.
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

    fn reserved(landings: &Landings) -> u64 {
        landings.on_disk().map(|(_, _, bytes)| bytes).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_reserved_until_the_capacity_has_fallen_by_as_many() {
        let (mut landings, now) = (Landings::default(), Instant::now());
        landings.add("n1", &"ssd".into(), 5, now);
        landings.add("n1", &"ssd".into(), 3, now);
        landings.publish("n1", &"".into(), 8, now);
        landings.publish("n2", &"ssd".into(), 8, now);
        assert_eq!(reserved(&landings), 8);
        landings.publish("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&landings), 3);
        landings.publish("n1", &"ssd".into(), 4, now);
        assert_eq!(reserved(&landings), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn unsettled_reservation_ends_when_its_volume_is_removed() {
        let (mut landings, now) = (Landings::default(), Instant::now());
        landings.add("n1", &"ssd".into(), 5, now);
        landings.add("n1", &"ssd".into(), 3, now);
        landings.remove("n1", &"ssd".into(), 5);
        landings.remove("n2", &"ssd".into(), 5);
        assert_eq!(reserved(&landings), 3);
        landings.remove("n1", &"ssd".into(), 4);
        landings.add("n1", &"ssd".into(), 2, now);
        assert_eq!(reserved(&landings), 2, "what was given back long before does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_capacity_that_was_published_before_counts_as_well() {
        let (mut landings, now) = (Landings::default(), Instant::now());
        landings.publish("n1", &"ssd".into(), 5, now);
        landings.add("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&landings), 0);
        landings.add("n1", &"ssd".into(), 5, now);
        assert_eq!(reserved(&landings), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn unsettled_reservation_expires_after_five_seconds() {
        let (mut landings, now) = (Landings::default(), Instant::now());
        landings.add("n1", &"ssd".into(), 5, now);
        assert_eq!(landings.next_end(), Some(now + LANDING_TIME));
        landings.expire(now + Duration::from_millis(4999));
        assert_eq!(reserved(&landings), 5);
        landings.expire(now + LANDING_TIME);
        assert_eq!((reserved(&landings), landings.next_end()), (0, None));
    }
}
