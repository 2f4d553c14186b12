//! The queue of a background task that works on items of a volume group one at a time, with pauses between steps and
//! back-off after failures.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use topolvm_runtime::Backoff;

/// An item that can be in a queue.
pub(super) trait Queued: Clone {
    /// Returns LVM's UUID of it.
    fn uuid(&self) -> &str;

    /// Returns the time for which it waits when it is new in the queue.
    fn first_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// The items that wait, by LVM's UUID. `S` is the state of the group that decides whether a step is possible: what has
/// failed is tried again at once when it has changed.
#[derive(Debug)]
pub(super) struct RetryQueue<S> {
    waiting: HashMap<String, Waiting<S>>,
    backoff: Backoff,
}

#[derive(Clone, Debug)]
struct Waiting<S> {
    /// Nothing is done with it before this ...
    due: Instant,
    /// ... unless it failed, and the group has changed since.
    failed_in: Option<S>,
    /// Back-off after the next failure.
    backoff: Backoff,
}

/// The next step of the background task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// Take a step with this item.
    Due(T),
    /// Wait until this moment, or until the group is refreshed.
    Wait(Option<Instant>),
}

impl<S: Copy + PartialEq> RetryQueue<S> {
    /// Returns an empty queue with this back-off after failures.
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { waiting: HashMap::new(), backoff }
    }

    /// Returns the item that has been due for the longest time.
    pub(super) fn next<T: Queued>(&mut self, items: &[T], state: S, now: Instant) -> Next<T> {
        self.waiting.retain(|uuid, _| items.iter().any(|item| item.uuid() == uuid));
        let mut first: Option<(Instant, &T)> = None;
        for item in items {
            let new = Waiting { due: now + item.first_delay(), failed_in: None, backoff: self.backoff.clone() };
            let waiting = self.waiting.entry(item.uuid().to_owned()).or_insert(new);
            if waiting.failed_in.is_some_and(|failed_in| failed_in != state) {
                (waiting.due, waiting.failed_in) = (now.min(waiting.due), None);
            }
            if first.is_none_or(|(earliest, _)| waiting.due < earliest) {
                first = Some((waiting.due, item));
            }
        }
        match first {
            Some((due, item)) if due <= now => Next::Due(item.clone()),
            first => Next::Wait(first.map(|(due, _)| due)),
        }
    }

    /// Takes the next step with an item at this moment: the last one has succeeded.
    pub(super) fn advanced(&mut self, uuid: &str, due: Instant) {
        let backoff = self.backoff.clone();
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            *waiting = Waiting { due, failed_in: None, backoff };
        }
    }

    /// Retries an item after a back-off, or when the state of the group is another than this one.
    pub(super) fn retry_later(&mut self, uuid: &str, state: S, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            (waiting.due, waiting.failed_in) = (now + waiting.backoff.fail(), Some(state));
        }
    }

    /// Leaves an item alone until this moment, whatever has failed before.
    pub(super) fn postpone(&mut self, uuid: &str, due: Instant) {
        if let Some(waiting) = self.waiting.get_mut(uuid) {
            waiting.due = due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(10));
    const DELAY: Duration = Duration::from_mins(20);

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Item(&'static str, Duration);

    impl Queued for Item {
        fn uuid(&self) -> &str {
            self.0
        }

        fn first_delay(&self) -> Duration {
            self.1
        }
    }

    fn item(uuid: &'static str) -> Item {
        Item(uuid, Duration::ZERO)
    }

    #[tokio::test(start_paused = true)]
    async fn items_take_turns_and_each_has_its_own_pauses() {
        let (mut queue, now) = (RetryQueue::new(BACKOFF), Instant::now());
        let both = [item("a"), item("b")];
        assert_eq!(queue.next(&both, 0, now), Next::Due(item("a")));
        queue.advanced("a", now + Duration::from_secs(2));
        assert_eq!(queue.next(&both, 0, now), Next::Due(item("b")));
        queue.advanced("b", now + Duration::from_secs(1));
        assert_eq!(queue.next(&both, 0, now), Next::Wait(Some(now + Duration::from_secs(1))));
        assert_eq!(queue.next(&both, 0, now + Duration::from_secs(3)), Next::Due(item("b")));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_item_waits_for_back_off_or_another_state() {
        let (mut queue, now) = (RetryQueue::new(BACKOFF), Instant::now());
        let items = [item("a")];
        assert_eq!(queue.next(&items, 10, now), Next::Due(item("a")));
        queue.retry_later("a", 10, now);
        assert_eq!(queue.next(&items, 10, now), Next::Wait(Some(now + Duration::from_secs(10))));
        assert_eq!(queue.next(&items, 11, now), Next::Due(item("a")));
        queue.retry_later("a", 10, now);
        assert_eq!(queue.next(&items, 10, now), Next::Wait(Some(now + Duration::from_secs(20))));
        queue.advanced("a", now);
        queue.retry_later("a", 10, now);
        assert_eq!(queue.next(&items, 10, now), Next::Wait(Some(now + Duration::from_secs(10))));
        assert_eq!(queue.next::<Item>(&[], 10, now), Next::Wait(None));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_delays_no_other_item() {
        let (mut queue, now) = (RetryQueue::new(BACKOFF), Instant::now());
        let both = [item("a"), item("b")];
        assert_eq!(queue.next(&both, (), now), Next::Due(item("a")));
        queue.retry_later("a", (), now);
        assert_eq!(queue.next(&both, (), now), Next::Due(item("b")));
        assert_eq!(queue.next(&both[..1], (), now), Next::Wait(Some(now + Duration::from_secs(10))));
        assert_eq!(queue.next(&both[..1], (), now + Duration::from_secs(10)), Next::Due(item("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_up_to_its_limit() {
        let (mut queue, mut now) = (RetryQueue::new(BACKOFF), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(matches!(queue.next(&[item("a")], (), now), Next::Due(_)));
            queue.retry_later("a", (), now);
            let Next::Wait(Some(due)) = queue.next(&[item("a")], (), now) else { panic!("it does not wait") };
            waits.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_item_is_due_later_and_can_be_postponed() {
        let (mut queue, now) = (RetryQueue::new(BACKOFF), Instant::now());
        let delayed = [Item("a", DELAY)];
        assert_eq!(queue.next(&delayed, (), now), Next::Wait(Some(now + DELAY)));
        let later = now + DELAY;
        assert_eq!(queue.next(&delayed, (), later), Next::Due(Item("a", DELAY)));
        queue.postpone("a", later + DELAY);
        assert_eq!(queue.next(&delayed, (), later), Next::Wait(Some(later + DELAY)));
    }
}
