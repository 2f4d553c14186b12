//! The queue of physical volumes to empty in one volume group, with pauses between pieces and back-off after failures.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use topolvm_runtime::Backoff;

use crate::tags::EvacuationWish;

/// Back-off after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// A physical volume with something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeavingDisk {
    /// LVM's UUID of it.
    pub(super) uuid: String,
    pub(super) path: String,
    pub(super) wish: EvacuationWish,
}

/// The facts about a group that decide whether something can be moved: when they change it is tried again at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes that are free where LVM may make volumes.
    pub(super) free: u64,
    /// Bytes that are free on any disk.
    pub(super) free_anywhere: u64,
    pub(super) missing_pvs: u64,
    pub(super) pvs: usize,
}

/// The disks that wait, by LVM's UUID.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: HashMap<String, Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    /// Nothing is done with it before this ...
    due: Instant,
    /// ... unless it failed, and the group has changed since.
    failed_with: Option<Room>,
    /// Back-off after the next failure.
    backoff: Backoff,
}

/// The next step of the background task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Do something with this disk.
    Advance(LeavingDisk),
    /// Wait until this moment, or until the group is refreshed.
    Wait(Option<Instant>),
}

impl Queue {
    /// Returns the disk that has been due for the longest time.
    pub(super) fn next(&mut self, disks: &[LeavingDisk], room: Room, now: Instant) -> Next {
        self.waiting.retain(|uuid, _| disks.iter().any(|disk| disk.uuid == *uuid));
        let mut first: Option<(Instant, &LeavingDisk)> = None;
        for disk in disks {
            let new = Waiting { due: now, failed_with: None, backoff: BACKOFF };
            let waiting = self.waiting.entry(disk.uuid.clone()).or_insert(new);
            if waiting.failed_with.is_some_and(|failed_with| failed_with != room) {
                (waiting.due, waiting.failed_with) = (now.min(waiting.due), None);
            }
            if first.is_none_or(|(earliest, _)| waiting.due < earliest) {
                first = Some((waiting.due, disk));
            }
        }
        match first {
            Some((due, disk)) if due <= now => Next::Advance(disk.clone()),
            first => Next::Wait(first.map(|(due, _)| due)),
        }
    }

    /// Goes on with a disk at this moment.
    pub(super) fn advanced(&mut self, uuid: &str, due: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            *waiting = Waiting { due, failed_with: None, backoff: BACKOFF };
        }
    }

    /// Tries a disk again after a back-off, or when the group is another than it was.
    pub(super) fn retry_later(&mut self, uuid: &str, room: Room, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            (waiting.due, waiting.failed_with) = (now + waiting.backoff.fail(), Some(room));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { free: 10, free_anywhere: 10, missing_pvs: 0, pvs: 3 };

    fn disk(uuid: &str) -> LeavingDisk {
        LeavingDisk { uuid: uuid.to_owned(), path: format!("/dev/{uuid}"), wish: EvacuationWish::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn disks_take_turns_and_each_has_its_own_pauses() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let both = [disk("a"), disk("b")];
        assert_eq!(queue.next(&both, ROOM, now), Next::Advance(disk("a")));
        queue.advanced("a", now + Duration::from_secs(2));
        assert_eq!(queue.next(&both, ROOM, now), Next::Advance(disk("b")));
        queue.advanced("b", now + Duration::from_secs(1));
        assert_eq!(queue.next(&both, ROOM, now), Next::Wait(Some(now + Duration::from_secs(1))));
        assert_eq!(queue.next(&both, ROOM, now + Duration::from_secs(3)), Next::Advance(disk("b")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_waits_for_the_back_off_or_for_another_state_of_the_group() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let disks = [disk("a")];
        assert_eq!(queue.next(&disks, ROOM, now), Next::Advance(disk("a")));
        queue.retry_later("a", ROOM, now);
        assert_eq!(queue.next(&disks, ROOM, now), Next::Wait(Some(now + Duration::from_secs(5))));
        assert_eq!(queue.next(&disks, Room { free: 11, ..ROOM }, now), Next::Advance(disk("a")));
        queue.retry_later("a", ROOM, now);
        assert_eq!(queue.next(&disks, ROOM, now), Next::Wait(Some(now + Duration::from_secs(10))));
        queue.advanced("a", now);
        queue.retry_later("a", ROOM, now);
        assert_eq!(queue.next(&disks, ROOM, now), Next::Wait(Some(now + Duration::from_secs(5))));
        assert_eq!(queue.next(&[], ROOM, now), Next::Wait(None));
    }
}
