//! The Node informer: the Nodes of the cluster, and the free bytes that their agents publish as annotations.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use topolvm_api::{ApiFlavor, NodeCapacity};
use topolvm_kube::{Cache, CacheWriter, has_finalizer, watch_all};
use topolvm_runtime::CancellationToken;

/// The metadata of a Node. Its spec and status, which are large and change often, are not watched.
pub(crate) type NodeMeta = PartialObjectMeta<Node>;

/// The cache of watched Nodes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct NodeInformer {
    flavor: ApiFlavor,
    pub(crate) cache: Cache<NodeMeta>,
    /// Changes when another Node may wait for our finalizer.
    deleted: watch::Receiver<()>,
}

/// A node and its free bytes of one device class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeNode {
    pub(crate) name: String,
    pub(crate) free: u64,
}

impl NodeInformer {
    /// Returns the informer, and the task that keeps its cache current until `shutdown` is cancelled.
    pub(crate) fn new(
        api: Api<NodeMeta>,
        flavor: ApiFlavor,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let mut writer = CacheWriter::default();
        let (deletion, deleted) = watch::channel(());
        let nodes = Self { flavor, cache: writer.as_reader(), deleted };
        let task = watch_all("Nodes", api, shutdown, move |mut event| {
            if let Event::Apply(node) | Event::InitApply(node) = &mut event {
                prune(flavor, node);
            }
            writer.apply(&event);
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

    /// Returns the node with the most free bytes of a device class; of equals, the one whose name comes first.
    pub(crate) fn with_most_free_bytes(&self, device_class: &str) -> Option<FreeNode> {
        self.cache
            .state()
            .iter()
            .filter_map(|node| {
                Some(FreeNode { name: node.metadata.name.clone()?, free: self.capacity(node).free(device_class)? })
            })
            .min_by(|a, b| b.free.cmp(&a.free).then_with(|| a.name.cmp(&b.name)))
    }

    /// Returns the free bytes of a device class on all nodes together.
    pub(crate) fn total_free_bytes(&self, device_class: &str) -> u64 {
        self.cache.state().iter().filter_map(|node| self.capacity(node).free(device_class)).fold(0, u64::saturating_add)
    }

    /// Returns whether the node of a topology segment is being deleted.
    pub(crate) fn is_being_deleted(&self, segment: &str) -> bool {
        self.find_by_segment(segment).is_some_and(|node| node.metadata.deletion_timestamp.is_some())
    }

    /// Returns the free bytes of a device class on the node of a topology segment; 0 where there is no such node or
    /// class.
    pub(crate) fn free_bytes(&self, segment: &str, device_class: &str) -> u64 {
        self.find_by_segment(segment).and_then(|node| self.capacity(&node).free(device_class)).unwrap_or(0)
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

    /// Returns the free bytes by device class. On a Node that is being deleted there are none: its volumes go with it.
    fn capacity(&self, node: &NodeMeta) -> NodeCapacity {
        let none = BTreeMap::new();
        let published = node.metadata.annotations.as_ref().filter(|_| node.metadata.deletion_timestamp.is_none());
        NodeCapacity::from_annotations(self.flavor, published.unwrap_or(&none))
    }
}

/// Returns whether the Node is being deleted and has our finalizer.
pub(crate) fn awaits_finalizer(flavor: ApiFlavor, node: &NodeMeta) -> bool {
    node.metadata.deletion_timestamp.is_some() && has_finalizer(&node.metadata, flavor.node_finalizer())
}

/// Drops what nobody reads before the Node is cached: a cluster has many Nodes with many labels and annotations.
fn prune(flavor: ApiFlavor, node: &mut NodeMeta) {
    let metadata = &mut node.metadata;
    metadata.managed_fields = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| key == flavor.topology_key());
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| key.starts_with(flavor.capacity_prefix()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    /// A Node: its name, its topology label, free bytes by device class.
    type Row<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, &'a str)]);

    /// Nodes as the API server would tell them.
    fn nodes(list: &[Row<'_>]) -> NodeInformer {
        let mut writer = CacheWriter::default();
        let nodes = NodeInformer { flavor: FLAVOR, cache: writer.as_reader(), deleted: watch::channel(()).1 };
        for (name, label, annotations) in list {
            let mut node = NodeMeta::default();
            node.metadata.name = Some((*name).to_owned());
            node.metadata.labels = label.map(|value| {
                let labels = [("kubernetes.io/os", "linux"), (FLAVOR.topology_key(), value)];
                labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
            });
            node.metadata.annotations = Some(
                annotations
                    .iter()
                    .map(|(class, free)| (FLAVOR.capacity_annotation(class), (*free).to_owned()))
                    .collect(),
            );
            prune(FLAVOR, &mut node);
            writer.apply(&Event::Apply(node));
        }
        nodes
    }

    #[test]
    fn the_node_with_most_free_of_the_class_is_found() {
        let nodes = nodes(&[
            ("n1", None, &[("", "5"), ("ssd", "1")]),
            ("n2", None, &[("", "9")]),
            ("n0", None, &[("", "9"), ("ssd", "lots")]),
        ]);
        let free = |name: &str, free| Some(FreeNode { name: name.to_owned(), free });
        assert_eq!(nodes.with_most_free_bytes(""), free("n0", 9));
        assert_eq!(nodes.with_most_free_bytes("ssd"), free("n1", 1));
        assert_eq!(nodes.with_most_free_bytes("hdd"), None);
    }

    #[test]
    fn totals_count_missing_and_unreadable_annotations_as_nothing() {
        let nodes = nodes(&[
            ("n1", None, &[("", "5")]),
            ("n2", None, &[("ssd", "3")]),
            ("n3", None, &[("", "x")]),
            ("n4", None, &[("", "18446744073709551615")]),
        ]);
        assert_eq!(nodes.total_free_bytes("ssd"), 3);
        assert_eq!(nodes.total_free_bytes(""), u64::MAX);
        assert_eq!(nodes.total_free_bytes("hdd"), 0);
    }

    #[test]
    fn a_segment_is_the_label_of_a_node_or_the_name_of_one_without_label() {
        let nodes =
            nodes(&[("n1", Some("n1"), &[("", "1")]), ("n2", Some("rack"), &[("", "2")]), ("n3", None, &[("", "3")])]);
        assert_eq!(nodes.free_bytes("n1", ""), 1);
        assert_eq!(nodes.free_bytes("rack", ""), 2);
        assert_eq!(nodes.free_bytes("n2", ""), 0);
        assert_eq!(nodes.free_bytes("n3", ""), 3);
        assert_eq!(nodes.free_bytes("n4", ""), 0);
        assert_eq!(nodes.free_bytes("n1", "ssd"), 0);
    }
}
