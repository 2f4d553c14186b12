//! The LogicalVolumes that have to be made new: pure functions from the objects of the cluster.

use std::collections::BTreeMap;
use std::fmt;

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestResult};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use topolvm_api::{ApiFlavor, LogicalVolume, LogicalVolumeSpec, SnapshotContent, same_lv};

use crate::error::OrphanError;
use crate::orphans::{self, OrphanRow};
use crate::references::{Reference, References};

/// The objects that show which LogicalVolumes are needed.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) volumes: Vec<LogicalVolume>,
    pub(super) references: References,
    pub(super) nodes: Vec<Node>,
}

/// A LogicalVolume that is made new.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Restoration {
    /// The object that is made.
    pub(super) object: LogicalVolume,
    /// The one that is being deleted; without it the object is gone.
    pub(super) deleted: Option<LogicalVolume>,
    /// Kind and name of the object that refers to the volume.
    reference: String,
}

impl fmt::Display for Restoration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, node) = (self.object.name(), &self.object.spec.node_name);
        let state = if self.deleted.is_some() { "is being deleted" } else { "was deleted" };
        write!(formatter, "LogicalVolume {name} of node {node} {state}, and {} refers to it", self.reference)
    }
}

impl Facts {
    /// Reads them from the API server.
    pub(super) async fn read(cluster: &Cluster) -> RequestResult<Self> {
        Ok(Self {
            volumes: super::list_volumes(cluster).await?,
            references: References::list(cluster).await?,
            nodes: request::list_all(&cluster.client).await?,
        })
    }

    /// Returns what has to be made new: what is being deleted, and what is gone and has left its LV.
    pub(super) fn restorations(&self, flavor: ApiFlavor) -> Result<Vec<Restoration>, OrphanError> {
        let deleted = self.volumes.iter().filter_map(|volume| self.restore_deleted(flavor, volume));
        let (orphans, _) = orphans::rows(flavor, &self.nodes)?;
        let gone = orphans.iter().filter_map(|orphan| self.restore_gone(flavor, orphan));
        Ok(deleted.chain(gone).collect())
    }

    fn restore_deleted(&self, flavor: ApiFlavor, volume: &LogicalVolume) -> Option<Restoration> {
        let lv = volume.volume_id().filter(|_| volume.is_deleting())?;
        let reference = self.find_user(flavor, lv)?.describe();
        let mut object = LogicalVolume::new(flavor, volume.spec.clone());
        object.metadata.labels.clone_from(&volume.metadata.labels);
        let mut annotations = volume.metadata.annotations.clone().unwrap_or_default();
        annotations.remove(flavor.pending_deletion());
        object.metadata.annotations = Some(annotations);
        Some(Restoration { object: request_lv(flavor, object, lv), deleted: Some(volume.clone()), reference })
    }

    fn restore_gone(&self, flavor: ApiFlavor, orphan: &OrphanRow) -> Option<Restoration> {
        let (node, lv) = (&orphan.node, &orphan.volume.lv);
        let has_lv = |volume: &LogicalVolume| {
            [Some(volume.uid()), volume.volume_id()].into_iter().flatten().any(|name| same_lv(name, lv))
        };
        if self.volumes.iter().any(has_lv) {
            return None;
        }
        let reference = self.find_user(flavor, lv)?;
        let (name, source) = match reference {
            Reference::PersistentVolume(persistent) => (persistent.name_any(), None),
            Reference::SnapshotContent(content) => (String::new(), Some(self.find_origin(flavor, content))),
        };
        let made_for = Some(&orphan.volume.logical_volume).filter(|name| !name.is_empty());
        let spec = LogicalVolumeSpec {
            name: made_for.cloned().unwrap_or(name),
            node_name: node.clone(),
            size: Quantity(orphan.volume.bytes.to_string()),
            device_class: orphan.volume.device_class.clone(),
            access_type: source.as_ref().map(|_| "ro".to_owned()).unwrap_or_default(),
            source: source.unwrap_or_default(),
            ..LogicalVolumeSpec::default()
        };
        let object = request_lv(flavor, LogicalVolume::new(flavor, spec), lv);
        (!object.name().is_empty()).then(|| Restoration { object, deleted: None, reference: reference.describe() })
    }

    /// Finds what needs a volume. CSI removes that of an object which is on its way out.
    fn find_user(&self, flavor: ApiFlavor, lv: &str) -> Option<Reference<'_>> {
        self.references.find(flavor, lv).filter(|reference| !reference.waits_for_removal())
    }

    /// Returns the name of the LogicalVolume, present or former, that a snapshot was made of. Any name will do if that
    /// cannot be found: a snapshot is one because it has a source.
    fn find_origin(&self, flavor: ApiFlavor, content: &SnapshotContent) -> String {
        let handle = content.spec.source.volume_handle.as_deref().unwrap_or("unknown");
        let present = self.volumes.iter().find(|volume| volume.volume_id() == Some(handle));
        if let Some(volume) = present {
            return volume.name().to_owned();
        }
        match self.references.find(flavor, handle) {
            Some(Reference::PersistentVolume(persistent)) => persistent.name_any(),
            Some(Reference::SnapshotContent(_)) | None => handle.to_owned(),
        }
    }
}

/// Has an object ask for an LV.
fn request_lv(flavor: ApiFlavor, mut object: LogicalVolume, lv: &str) -> LogicalVolume {
    let annotations = object.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(flavor.adopt().to_owned(), lv.to_owned());
    object
}
