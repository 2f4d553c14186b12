//! The sources of the page: caches of the controller, and the findings of its checks.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_capacity::{Capacity, ClassCapacity, NodeMeta};
use topolvm_doctor::Checked;
use topolvm_kube::{Cache, LogicalVolumes};

/// The caches of the controller, which are current, and what its checks have found. Clones share them.
#[derive(Clone)]
pub struct Cluster {
    /// The API group.
    pub flavor: ApiFlavor,
    /// The LogicalVolumes.
    pub volumes: LogicalVolumes,
    /// Changes with every LogicalVolume.
    pub volumes_changed: watch::Receiver<()>,
    /// The Nodes.
    pub nodes: Cache<NodeMeta>,
    /// Free space as the Nodes publish it, and the reservations.
    pub capacity: Capacity,
    /// The findings of the last run of the checks; none where they have not run in this process, as where another
    /// replica leads.
    pub checked: watch::Receiver<Option<Arc<Checked>>>,
    /// The client, for pods of agents.
    pub client: Client,
    /// The namespace of the programs.
    pub namespace: String,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("flavor", &self.flavor).finish_non_exhaustive()
    }
}

/// The objects at one moment, from which an answer is computed.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) flavor: ApiFlavor,
    pub(crate) volumes: Vec<Arc<LogicalVolume>>,
    /// Names of the Nodes.
    pub(crate) nodes: HashSet<String>,
    /// The device classes of the Nodes.
    pub(crate) classes: Vec<ClassCapacity>,
    /// Names of the default classes by node, where they are known.
    default_classes: HashMap<String, String>,
    /// True when all objects have been listed once.
    pub(crate) is_listed: bool,
    pub(crate) checked: Option<Arc<Checked>>,
    pub(crate) now: Timestamp,
}

impl Cluster {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let classes = self.capacity.device_classes();
        let named = classes.iter().filter(|class| class.is_default && !class.device_class.is_empty());
        Snapshot {
            flavor: self.flavor,
            volumes: self.volumes.state(),
            nodes: self.nodes.state().iter().map(|node| node.name_any()).collect(),
            default_classes: named.map(|class| (class.node.clone(), class.device_class.clone())).collect(),
            classes,
            is_listed: self.volumes.is_listed() && self.nodes.is_listed(),
            checked: self.checked.borrow().clone(),
            now: (self.now)(),
        }
    }
}

impl Snapshot {
    /// Returns the device class of a volume; empty for a default class whose name is unknown.
    pub(crate) fn class_of<'a>(&'a self, volume: &'a LogicalVolume) -> &'a str {
        let named = Some(volume.spec.device_class.as_str()).filter(|class| !class.is_empty());
        let default = || self.default_classes.get(&volume.spec.node_name).map(String::as_str);
        named.or_else(default).unwrap_or_default()
    }

    /// Returns whether the Node of a volume exists. Before all Nodes are listed none is taken for missing.
    pub(crate) fn has_node_of(&self, volume: &LogicalVolume) -> bool {
        !self.is_listed || self.nodes.contains(&volume.spec.node_name)
    }
}
