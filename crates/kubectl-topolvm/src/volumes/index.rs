//! Index of objects by the names under which others refer to them: one pass over them, however many there are.

use std::collections::{BTreeMap, BTreeSet};

use cli_runtime::objects::Objects;
use k8s_openapi::api::core::v1::PersistentVolume;
use topolvm_api::{ApiFlavor, LogicalVolume};

/// PersistentVolumes of the driver, LogicalVolumes and Nodes by name.
#[derive(Debug)]
pub(super) struct Index<'a> {
    persistent: BTreeMap<&'a str, &'a PersistentVolume>,
    volumes: BTreeMap<&'a str, &'a LogicalVolume>,
    volumes_by_id: BTreeMap<&'a str, &'a LogicalVolume>,
    nodes: BTreeSet<&'a str>,
}

impl<'a> Index<'a> {
    pub(super) fn new(flavor: ApiFlavor, objects: &'a Objects) -> Self {
        let named = |volume: &'a PersistentVolume| Some((volume.metadata.name.as_deref()?, volume));
        let with_id = |volume: &'a LogicalVolume| Some((volume.volume_id()?, volume));
        Self {
            persistent: objects.our_persistent(flavor).filter_map(named).collect(),
            volumes: objects.volumes.iter().map(|volume| (volume.name(), volume)).collect(),
            volumes_by_id: objects.volumes.iter().filter_map(with_id).collect(),
            nodes: objects.nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect(),
        }
    }

    pub(super) fn persistent(&self, name: &str) -> Option<&'a PersistentVolume> {
        self.persistent.get(name).copied()
    }

    pub(super) fn volume(&self, name: &str) -> Option<&'a LogicalVolume> {
        self.volumes.get(name).copied()
    }

    /// Returns the LogicalVolume of a PersistentVolume: by volume id, or by name if it has no id yet.
    pub(super) fn volume_of(&self, persistent: &PersistentVolume) -> Option<&'a LogicalVolume> {
        let handle = persistent.spec.as_ref()?.csi.as_ref()?.volume_handle.as_str();
        let by_name =
            || self.volume(persistent.metadata.name.as_deref()?).filter(|volume| volume.volume_id().is_none());
        self.volumes_by_id.get(handle).copied().or_else(by_name)
    }

    pub(super) fn has_node(&self, name: &str) -> bool {
        self.nodes.contains(name)
    }
}
