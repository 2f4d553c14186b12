//! The Node informer: which Nodes there are, and which of them are being deleted. What their agents publish goes to
//! [`Capacity`].

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use futures::{Stream, StreamExt as _, stream};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use topolvm_api::{ApiFlavor, NodeSelection, NodeState};
use topolvm_capacity::{Capacity, NodeMeta};
use topolvm_kube::{Cache, CacheWriter, has_finalizer, watch_all};
use topolvm_runtime::CancellationToken;

/// The cache of watched Nodes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct NodeInformer {
    flavor: ApiFlavor,
    /// The selection of the nodes that have storage.
    pub(crate) selection: NodeSelection,
    pub(crate) cache: Cache<NodeMeta>,
    /// Changes when another Node may wait for our finalizer.
    deleted: watch::Receiver<()>,
    changed: watch::Receiver<()>,
    /// The capacities that the Nodes publish.
    capacity: Capacity,
}

impl NodeInformer {
    /// Returns the informer, and the task that keeps its cache and the capacity current until `shutdown` is cancelled.
    pub(crate) fn new(
        api: Api<NodeMeta>,
        flavor: ApiFlavor,
        selection: NodeSelection,
        capacity: Capacity,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let mut writer = CacheWriter::default();
        let (deletion, deleted) = watch::channel(());
        let (change, changed) = watch::channel(());
        let cache = writer.as_reader();
        let nodes = Self { flavor, selection: selection.clone(), cache, deleted, changed, capacity: capacity.clone() };
        let task = watch_all("Nodes", api, shutdown, move |mut event| {
            capacity.apply_node(&event);
            if let Event::Apply(node) | Event::InitApply(node) = &mut event {
                prune(flavor, &selection, node);
            }
            writer.apply(&event);
            change.send_replace(());
            let may_wait = match &event {
                Event::Apply(node) => awaits_finalizer(flavor, node),
                Event::InitDone => true,
                Event::InitApply(_) | Event::Delete(_) | Event::Init => false,
            };
            if may_wait {
                deletion.send_replace(());
            }
        });
        (nodes, task)
    }

    /// Subscribes to the changes of any Node from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        let mut changed = self.changed.clone();
        changed.mark_unchanged();
        changed
    }

    /// Returns whether there is a Node of this name.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.cache.get(&ObjectRef::new(name)).is_some()
    }

    /// Streams the deleted Nodes that [wait for our finalizer](awaits_finalizer), all of them again whenever there may
    /// be another one.
    pub(crate) fn awaiting_finalizer(&self) -> impl Stream<Item = ObjectRef<NodeMeta>> + use<> {
        let (flavor, cache) = (self.flavor, self.cache.clone());
        WatchStream::new(self.deleted.clone()).flat_map(move |()| {
            let mut nodes = cache.state();
            nodes.retain(|node| awaits_finalizer(flavor, node));
            stream::iter(nodes.into_iter().map(|node| ObjectRef::from_obj(&*node)))
        })
    }

    /// Returns the nodes that have device classes and no default one, each with the names of its classes.
    pub(crate) fn without_default_class(&self) -> Vec<(Arc<NodeMeta>, Vec<String>)> {
        let nodes = self.capacity.nodes_without_default_class().into_iter();
        nodes.filter_map(|(name, classes)| Some((self.cache.get(&ObjectRef::new(&name))?, classes))).collect()
    }

    /// Returns whether the node of a topology segment is being deleted.
    pub(crate) fn is_being_deleted(&self, segment: &str) -> bool {
        self.find_by_segment(segment).is_some_and(|node| node.metadata.deletion_timestamp.is_some())
    }

    /// Returns whether the node of a topology segment is one that keeps its volumes and takes no new ones. One that is
    /// not known is not.
    pub(crate) fn takes_no_volumes(&self, segment: &str) -> bool {
        let state = self.find_by_segment(segment).map(|node| self.selection.state(node.metadata.labels.as_ref()));
        state.is_some_and(|state| state != NodeState::Selected)
    }

    /// Returns the Nodes that have the topology label of another node, by the value of the label. A volume of that node
    /// would be reachable from both, as far as kube-scheduler knows.
    pub(crate) fn find_impostors(&self) -> BTreeMap<String, String> {
        let key = self.flavor.topology_key();
        let nodes = self.cache.state().into_iter();
        let labels = nodes.filter_map(|node| Some((node.labels().get(key)?.clone(), node.name_any())));
        labels.filter(|(value, name)| value != name).collect()
    }

    /// Finds the node whose topology label has this value. A node agent answers its node's name as the segment, so that
    /// the node of that name is tried first; kubelet may not have made the label yet.
    fn find_by_segment(&self, segment: &str) -> Option<Arc<NodeMeta>> {
        let label = |node: &NodeMeta| node.labels().get(self.flavor.topology_key()).cloned();
        self.cache
            .get(&ObjectRef::new(segment))
            .filter(|node| label(node).is_none_or(|value| value == segment))
            .or_else(|| self.cache.find(|node| label(node).as_deref() == Some(segment)))
    }
}

/// Returns whether the Node is being deleted and has our finalizer.
pub(crate) fn awaits_finalizer(flavor: ApiFlavor, node: &NodeMeta) -> bool {
    node.metadata.deletion_timestamp.is_some() && has_finalizer(&node.metadata, flavor.node_finalizer())
}

/// Drops unused fields before the Node is cached: a cluster has many Nodes with many labels and annotations.
fn prune(flavor: ApiFlavor, selection: &NodeSelection, node: &mut NodeMeta) {
    let metadata = &mut node.metadata;
    metadata.managed_fields = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == flavor.topology_key() || selection.reads(key));
    }
    // The annotations of a node that is not selected are to be removed
    let is_kept = selection.state(metadata.labels.as_ref()) == NodeState::Excluded;
    metadata.annotations = metadata.annotations.take().filter(|_| is_kept).and_then(|mut annotations| {
        annotations.retain(|key, _| flavor.is_capacity_annotation(key));
        (!annotations.is_empty()).then_some(annotations)
    });
}
