//! Which volume of a group is wiped next, and when.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::ToWipe;

/// What belongs to another lvmd is left to it for so long, as what another one makes is.
const TAKE_OVER: Duration = Duration::from_mins(20);
/// After a failure it is tried again after this, then twice as late each time ...
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// ... up to this.
const LAST_RETRY: Duration = Duration::from_mins(10);

/// The volumes that wait, by their identity.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: HashMap<String, Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Not before this.
    due: Instant,
    /// After the next failure.
    retry: Duration,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wipe this one.
    Wipe(ToWipe),
    /// Nothing until then, or until there is news.
    Wait(Option<Instant>),
}

impl Queue {
    /// Of those that are due, the one that is for the longest time.
    pub(super) fn next(&mut self, volumes: &[ToWipe], now: Instant) -> Next {
        self.waiting.retain(|uuid, _| volumes.iter().any(|volume| volume.uuid == *uuid));
        let mut first: Option<(Instant, &ToWipe)> = None;
        for volume in volumes {
            let due = if volume.is_ours { now } else { now + TAKE_OVER };
            let new = Waiting { due, retry: FIRST_RETRY };
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

    /// It could not be wiped.
    pub(super) fn failed(&mut self, uuid: &str, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            waiting.due = now + waiting.retry;
            waiting.retry = LAST_RETRY.min(waiting.retry * 2);
        }
    }

    /// Somebody else is at it.
    pub(super) fn leave(&mut self, uuid: &str, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            waiting.due = now + TAKE_OVER;
        }
    }
}

#[cfg(test)]
mod tests {
    use lvm::Wipe;

    use super::*;

    fn volume(uuid: &str, is_ours: bool) -> ToWipe {
        ToWipe { uuid: uuid.to_owned(), name: uuid.to_owned(), how: Wipe::Zero, size: 1, is_ours }
    }

    #[tokio::test(start_paused = true)]
    async fn ours_come_in_turn_and_one_that_fails_holds_up_no_other() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let both = [volume("a", true), volume("b", true)];
        assert_eq!(queue.next(&both, now), Next::Wipe(volume("a", true)));
        queue.failed("a", now);
        assert_eq!(queue.next(&both, now), Next::Wipe(volume("b", true)));
        assert_eq!(queue.next(&both[..1], now), Next::Wait(Some(now + FIRST_RETRY)));
        assert_eq!(queue.next(&both[..1], now + FIRST_RETRY), Next::Wipe(volume("a", true)));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_later_and_later_up_to_ten_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(matches!(queue.next(&[volume("a", true)], now), Next::Wipe(_)));
            queue.failed("a", now);
            let Next::Wait(Some(due)) = queue.next(&[volume("a", true)], now) else { panic!("it does not wait") };
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_one_wipes_is_taken_over_after_twenty_minutes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let theirs = [volume("a", false)];
        assert_eq!(queue.next(&theirs, now), Next::Wait(Some(now + TAKE_OVER)));
        let later = now + TAKE_OVER;
        assert_eq!(queue.next(&theirs, later), Next::Wipe(volume("a", false)));
        queue.leave("a", later);
        assert_eq!(queue.next(&theirs, later), Next::Wait(Some(later + TAKE_OVER)));
    }

    #[tokio::test(start_paused = true)]
    async fn without_volumes_only_news_count() {
        assert_eq!(Queue::default().next(&[], Instant::now()), Next::Wait(None));
    }
}
