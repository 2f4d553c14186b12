//! A cache of the Nodes: their free bytes by name, which a watch of their metadata keeps current.
//!
//! Only that is kept. kube's reflector store takes ten times as much for the metadata of a Node, and a cluster may have
//! thousands.

use std::collections::HashMap;
use std::future::Future;
use std::mem;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout_at};
use topolvm_api::ApiFlavor;
use topolvm_kube::watch_selected;
use topolvm_runtime::CancellationToken;

use crate::capacity::Capacity;

/// Nodes that are listed with one request. All metadata of so many is in memory for a moment.
const PAGE_SIZE: u32 = 50;

/// Time for which an answer may wait for news of Nodes ...
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// ... once in this time: kube-scheduler asks about one pod after the other.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

/// The metadata of a Node. Its spec and status, which are large and change often, are not watched.
type NodeMeta = PartialObjectMeta<Node>;

/// Nodes by name.
pub(crate) type Nodes = HashMap<Box<str>, Capacity>;

/// The cache of the Nodes of the cluster. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct NodeCache {
    /// `None` until all have been listed once.
    nodes: Arc<RwLock<Option<Nodes>>>,
    changed: Arc<watch::Sender<()>>,
    waited_at: Arc<Mutex<Option<Instant>>>,
}

impl NodeCache {
    /// Returns the cache, and the task that keeps it current until `shutdown` is cancelled.
    pub fn watch(
        client: Client,
        flavor: ApiFlavor,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let cache = Self::default();
        let mut writer = Writer { flavor, nodes: Arc::clone(&cache.nodes), listing: Nodes::new() };
        let changed = Arc::clone(&cache.changed);
        let (api, selection) = (Api::all(client), watcher::Config::default().page_size(PAGE_SIZE));
        let task = watch_selected("Nodes", api, selection, shutdown, move |event| {
            writer.apply(event);
            changed.send_replace(());
        });
        (cache, task)
    }

    /// Returns all Nodes; `None` until they have been listed once.
    pub(crate) fn read(&self) -> Option<MappedRwLockReadGuard<'_, Nodes>> {
        RwLockReadGuard::try_map(self.nodes.read(), Option::as_ref).ok()
    }

    /// Subscribes to news of Nodes, for one answer.
    pub(crate) fn news(&self) -> News<'_> {
        News { cache: self, changes: self.changed.subscribe(), has_waited: false, until: None }
    }

    /// Returns until when an answer may wait for news of Nodes; `None` when another has waited a moment ago.
    fn begin_wait(&self) -> Option<Instant> {
        let (now, mut waited_at) = (Instant::now(), self.waited_at.lock());
        if waited_at.is_some_and(|waited_at| now.duration_since(waited_at) < WAIT_INTERVAL) {
            return None;
        }
        *waited_at = Some(now);
        Some(now + LONGEST_WAIT)
    }

    /// Returns whether all Nodes have been listed once.
    pub fn is_listed(&self) -> bool {
        self.nodes.read().is_some()
    }
}

/// The changes of Nodes since an answer has begun.
#[derive(Debug)]
pub(crate) struct News<'a> {
    cache: &'a NodeCache,
    changes: watch::Receiver<()>,
    has_waited: bool,
    /// Until when it may wait on; set by the first wait.
    until: Option<Instant>,
}

impl News<'_> {
    /// Waits for the next change, if the answer may; returns whether there was one.
    pub(crate) async fn wait(&mut self) -> bool {
        if !mem::replace(&mut self.has_waited, true) {
            self.until = self.cache.begin_wait();
        }
        match self.until {
            Some(until) => timeout_at(until, self.changes.changed()).await.is_ok(),
            None => false,
        }
    }
}

/// Keeps a cache up to date.
struct Writer {
    flavor: ApiFlavor,
    nodes: Arc<RwLock<Option<Nodes>>>,
    /// Nodes of a list that is not complete yet. Until it is, those before are served.
    listing: Nodes,
}

impl Writer {
    fn apply(&mut self, event: Event<NodeMeta>) {
        match event {
            Event::Init => self.listing = Nodes::new(),
            Event::InitApply(node) => self.listing.extend(read_node(self.flavor, node)),
            Event::InitDone => *self.nodes.write() = Some(mem::take(&mut self.listing)),
            Event::Apply(node) => {
                if let (Some(nodes), Some((name, capacity))) = (&mut *self.nodes.write(), read_node(self.flavor, node))
                {
                    nodes.insert(name, capacity);
                }
            }
            Event::Delete(node) => {
                if let (Some(nodes), Some(name)) = (&mut *self.nodes.write(), node.metadata.name) {
                    nodes.remove(name.as_str());
                }
            }
        }
    }
}

fn read_node(flavor: ApiFlavor, node: NodeMeta) -> Option<(Box<str>, Capacity)> {
    let annotations = node.metadata.annotations.unwrap_or_default();
    let annotations = annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    Some((node.metadata.name?.into(), Capacity::from_annotations(flavor, annotations)))
}
