//! The free bytes that Nodes publish as annotations. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::Event;
use topolvm_api::{ApiFlavor, LayoutCapacity, ListedClass, NodeCapacity};

use crate::listing::Listing;
use crate::volume_classes::VolumeClasses;

/// The metadata of a Node. Its spec and status, which are large and change often, are not watched.
pub type NodeMeta = PartialObjectMeta<Node>;

/// The free bytes and the topology segment that one Node publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedNode {
    /// The value of its topology label, which kubelet makes when the agent has registered.
    segment: Option<Box<str>>,
    /// On a Node that is being deleted there is none: its volumes go with it.
    capacity: NodeCapacity,
    /// It is not a new one: what it does not publish it does not have.
    is_deleted: bool,
}

impl PublishedNode {
    pub(crate) fn segment(&self) -> Option<&str> {
        self.segment.as_deref()
    }

    /// Returns whether the agent is yet to publish what the node has. Where there is nothing it publishes that.
    pub(crate) fn is_unpublished(&self) -> bool {
        self.capacity.is_empty() && !self.is_deleted
    }

    /// Returns the free bytes for volumes of these classes; none if the node does not have the device class.
    pub(crate) fn free(&self, classes: &VolumeClasses) -> Option<u64> {
        self.layout(classes).map(|layout| layout.free)
    }

    fn layout(&self, classes: &VolumeClasses) -> Option<LayoutCapacity> {
        self.capacity.layout(&classes.device_class, &classes.option_class)
    }

    /// Returns the bytes by which what is free for volumes of the classes `from` gets less at most when a volume of the
    /// classes `by` is made, see [`LayoutCapacity::taken_by`].
    pub(crate) fn taken(&self, from: &VolumeClasses, by: &VolumeClasses, bytes: u64) -> u64 {
        match (self.layout(from), self.layout(by)) {
            _ if !self.may_be_same(&from.device_class, &by.device_class) => 0,
            (Some(from), Some(by)) => from.taken_by(&by, bytes),
            (None, _) | (_, None) => bytes,
        }
    }

    /// Returns each device class of the node once.
    pub(crate) fn listed_classes(&self) -> Vec<ListedClass<'_>> {
        self.capacity.listed_classes()
    }

    /// Returns the names of the node's device classes if none of them is the default one.
    pub(crate) fn classes_without_default(&self) -> Option<Vec<String>> {
        self.capacity.lacks_default_class().then(|| self.capacity.classes().map(str::to_owned).collect())
    }

    /// Returns whether two device classes of the node are, or may be, the same one under two names: one of them is the
    /// default class, and as much is free in both. Which class is the default one a node does not publish.
    fn may_be_same(&self, a: &str, b: &str) -> bool {
        let free = |class| self.capacity.free(class);
        a == b || ((a.is_empty() || b.is_empty()) && free(a).is_some() && free(a) == free(b))
    }
}

/// The free bytes that all Nodes publish.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    flavor: ApiFlavor,
    nodes: HashMap<Box<str>, PublishedNode>,
    listing: Listing<Box<str>>,
}

/// A change of what a Node publishes.
#[derive(Clone, Debug)]
pub(crate) struct PublishedChange {
    pub(crate) node: Box<str>,
    pub(crate) before: PublishedNode,
    pub(crate) after: PublishedNode,
}

impl Published {
    pub(crate) fn new(flavor: ApiFlavor) -> Self {
        Self { flavor, nodes: HashMap::new(), listing: Listing::default() }
    }

    /// Returns whether all Nodes have been listed once.
    pub(crate) fn is_listed(&self) -> bool {
        self.listing.is_complete()
    }

    /// Returns the node of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&PublishedNode> {
        self.nodes.get(name)
    }

    /// Iterates over all nodes by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &PublishedNode)> {
        self.nodes.iter().map(|(name, node)| (&**name, node))
    }

    /// Finds the node whose topology label has this value. An agent answers its node's name as the segment, so that the
    /// node of that name is tried first; kubelet may not have made the label yet.
    pub(crate) fn find_by_segment(&self, segment: &str) -> Option<(&str, &PublishedNode)> {
        let by_name = self.nodes.get_key_value(segment).map(|(name, node)| (&**name, node));
        by_name
            .filter(|(_, node)| node.segment().is_none_or(|value| value == segment))
            .or_else(|| self.iter().find(|(_, node)| node.segment() == Some(segment)))
    }

    /// Applies an event of the watch. Returns the change of one Node, if it is one.
    pub(crate) fn apply(&mut self, event: &Event<NodeMeta>) -> Option<PublishedChange> {
        match event {
            Event::Init => self.listing.begin(),
            Event::InitDone => {
                let listed = self.listing.end();
                self.nodes.retain(|name, _| listed.contains(name));
            }
            Event::Delete(node) => drop(self.nodes.remove(&*node.name_any())),
            Event::Apply(node) | Event::InitApply(node) => {
                let name: Box<str> = node.name_any().into();
                if matches!(event, Event::InitApply(_)) {
                    self.listing.add(name.clone());
                }
                let after = self.read(node);
                let before = self.nodes.insert(name.clone(), after.clone())?;
                return Some(PublishedChange { node: name, before, after });
            }
        }
        None
    }

    fn read(&self, node: &NodeMeta) -> PublishedNode {
        let none = BTreeMap::new();
        let is_deleted = node.metadata.deletion_timestamp.is_some();
        let published = node.metadata.annotations.as_ref().filter(|_| !is_deleted);
        PublishedNode {
            segment: node.labels().get(self.flavor.topology_key()).map(|value| value.as_str().into()),
            capacity: NodeCapacity::from_annotations(self.flavor, published.unwrap_or(&none)),
            is_deleted,
        }
    }
}
