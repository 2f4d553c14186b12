//! The queue of volumes to wipe in one volume group, with back-off after failures.

use std::collections::HashMap;
use std::time::Duration;

use lvm::Wipe;
use tokio::time::Instant;
use topolvm_runtime::Backoff;

/// Time for which a volume is left to another lvmd that is to wipe it.
const TAKE_OVER: Duration = Duration::from_mins(20);
/// Back-off after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(10));

/// A volume to wipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingWipe {
    /// LVM's UUID of it: its name may change meanwhile.
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) how: Wipe,
    /// In bytes.
    pub(super) size: u64,
    /// True if this instance of lvmd is to wipe it.
    pub(super) is_ours: bool,
}

/// The volumes that wait, by LVM's UUID.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: HashMap<String, Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    /// Not to be wiped before this.
    due: Instant,
    /// Back-off after the next failure.
    backoff: Backoff,
}

/// The next step of the background task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wipe this volume.
    Wipe(PendingWipe),
    /// Wait until this moment, or until the group is refreshed.
    Wait(Option<Instant>),
}

impl Queue {
    /// Returns the volume that has been due for the longest time.
    pub(super) fn next(&mut self, volumes: &[PendingWipe], now: Instant) -> Next {
        self.waiting.retain(|uuid, _| volumes.iter().any(|volume| volume.uuid == *uuid));
        let mut first: Option<(Instant, &PendingWipe)> = None;
        for volume in volumes {
            let due = if volume.is_ours { now } else { now + TAKE_OVER };
            let new = Waiting { due, backoff: BACKOFF };
            let due = self.waiting.entry(volume.uuid.clone()).or_insert(new).due;
            if first.is_none_or(|(earliest, _)| due < earliest) {
                first = Some((due, volume));
            }
        }
        match first {
            Some((due, volume)) if due <= now => Next::Wipe(volume.clone()),
            first => Next::Wait(first.map(|(due, _)| due)),
        }
    }

    /// Retries a volume after a back-off: it could not be wiped.
    pub(super) fn retry_later(&mut self, uuid: &str, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            waiting.due = now + waiting.backoff.fail();
        }
    }

    /// Leaves a volume to the other lvmd that is wiping it.
    pub(super) fn leave_to_owner(&mut self, uuid: &str, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            waiting.due = now + TAKE_OVER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(uuid: &str, is_ours: bool) -> PendingWipe {
        PendingWipe { uuid: uuid.to_owned(), name: uuid.to_owned(), how: Wipe::Zero, size: 1, is_ours }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_delays_no_other_volume() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let both = [volume("a", true), volume("b", true)];
        assert_eq!(queue.next(&both, now), Next::Wipe(volume("a", true)));
        queue.retry_later("a", now);
        assert_eq!(queue.next(&both, now), Next::Wipe(volume("b", true)));
        assert_eq!(queue.next(&both[..1], now), Next::Wait(Some(now + Duration::from_secs(10))));
        assert_eq!(queue.next(&both[..1], now + Duration::from_secs(10)), Next::Wipe(volume("a", true)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_backoff_doubles_up_to_ten_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(matches!(queue.next(&[volume("a", true)], now), Next::Wipe(_)));
            queue.retry_later("a", now);
            let Next::Wait(Some(due)) = queue.next(&[volume("a", true)], now) else { panic!("it does not wait") };
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_of_another_lvmd_is_taken_over_after_twenty_minutes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let theirs = [volume("a", false)];
        assert_eq!(queue.next(&theirs, now), Next::Wait(Some(now + TAKE_OVER)));
        let later = now + TAKE_OVER;
        assert_eq!(queue.next(&theirs, later), Next::Wipe(volume("a", false)));
        queue.leave_to_owner("a", later);
        assert_eq!(queue.next(&theirs, later), Next::Wait(Some(later + TAKE_OVER)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_empty_queue_waits_for_the_next_refresh() {
        assert_eq!(Queue::default().next(&[], Instant::now()), Next::Wait(None));
    }
}
