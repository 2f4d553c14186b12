//! The connections of a server: their number, timeouts, and the eviction of one for the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::{FIRST_REQUEST, IDLE};

/// Metrics of the connections of a server.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    /// Open connections.
    pub open: Gauge,
    /// Connections that were closed without a request, because another one needed the place.
    pub evicted: Counter,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no request, or one that has not been received whole, and is closed at the deadline. It has this key in
    /// the table.
    Waiting { deadline: Instant, key: u64 },
    /// Its request is being answered.
    Answering,
    /// It is closed for another one.
    Evicted,
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// Notified when a connection has ended, or waits again and could be evicted.
    changed: Notify,
    metrics: ConnectionMetrics,
}

#[derive(Debug, Default)]
struct Table {
    open: usize,
    /// Those that are evicted and have not ended yet.
    evicting: usize,
    /// Those that wait for a request, in the order in which they began to.
    waiting: BTreeMap<u64, watch::Sender<State>>,
    /// The next key of `waiting`.
    next_key: u64,
}

impl Connections {
    pub(super) fn new(most: usize, metrics: ConnectionMetrics) -> Self {
        let shared = Shared { table: Mutex::default(), changed: Notify::new(), metrics };
        Self { most, shared: Arc::new(shared) }
    }

    /// Takes a place for one more. When there is none, the connection that has waited longest for a request is evicted;
    /// when all are being answered, this waits.
    pub(super) async fn open(&self) -> Connection {
        loop {
            if let Some(connection) = self.try_open() {
                return connection;
            }
            // There is one caller, and a permit is kept for it
            self.shared.changed.notified().await;
        }
    }

    fn try_open(&self) -> Option<Connection> {
        let mut table = self.shared.table.lock();
        if table.open >= self.most {
            // One at a time: a connection that ends for another reason meanwhile frees a place too
            if table.evicting == 0
                && let Some((_, longest)) = table.waiting.pop_first()
            {
                table.evicting += 1;
                longest.send_replace(State::Evicted);
                self.shared.metrics.evicted.inc();
            }
            return None;
        }
        table.open += 1;
        self.shared.metrics.open.inc();
        drop(table);
        let state = watch::Sender::new(State::Answering);
        let connection = Connection { shared: Arc::clone(&self.shared), state };
        connection.wait_until(Instant::now() + FIRST_REQUEST);
        Some(connection)
    }
}

/// One connection; its place is free when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    state: watch::Sender<State>,
}

impl Connection {
    /// Notes that the head of a request has been received; its body may take a while.
    pub(super) fn head_received(&self) {
        self.wait_until(Instant::now() + IDLE);
    }

    /// Notes that a request has been received whole. From now on the connection is not evicted.
    pub(super) fn request_received(&self) {
        let mut table = self.shared.table.lock();
        if self.key().is_some_and(|key| table.waiting.remove(&key).is_some()) {
            self.state.send_replace(State::Answering);
        }
    }

    /// Records that the answer has been sent.
    pub(super) fn answered(&self) {
        self.wait_until(Instant::now() + IDLE);
    }

    fn wait_until(&self, deadline: Instant) {
        let mut table = self.shared.table.lock();
        if *self.state.borrow() == State::Evicted {
            return;
        }
        if let Some(key) = self.key() {
            table.waiting.remove(&key);
        }
        let key = table.next_key;
        table.next_key += 1;
        table.waiting.insert(key, self.state.clone());
        self.state.send_replace(State::Waiting { deadline, key });
        drop(table);
        self.shared.changed.notify_one();
    }

    /// Returns the key in the table of those that wait.
    fn key(&self) -> Option<u64> {
        if let State::Waiting { key, .. } = *self.state.borrow() { Some(key) } else { None }
    }

    /// Waits until the connection has to be closed: its request has not come in time, or it is evicted.
    pub(super) async fn expired(&self) {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            let deadline = match state {
                State::Evicted => return,
                State::Answering => None,
                State::Waiting { deadline, .. } => Some(deadline),
            };
            tokio::select! {
                // Never an error: the sender is borrowed
                _ = changes.changed() => {}
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => return,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        table.open -= 1;
        if *self.state.borrow() == State::Evicted {
            table.evicting -= 1;
        }
        if let Some(key) = self.key() {
            table.waiting.remove(&key);
        }
        drop(table);
        self.shared.metrics.open.dec();
        self.shared.changed.notify_one();
    }
}
