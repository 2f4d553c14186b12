//! Reads a volume or snapshot from its `LogicalVolume` object.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use topolvm_api::{ApiFlavor, LogicalVolume, SnapshotGroup, lost_message, parse_bytes};

use crate::volume_informer::VolumeInformer;

/// Volume or snapshot: both are `LogicalVolume`s, and their ids have the same form. For a request for the one, the
/// other does not exist: a snapshot is never expanded, cloned or deleted as a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeKind {
    Volume,
    Snapshot,
}

impl VolumeKind {
    pub(crate) fn from_object(object: &LogicalVolume) -> Self {
        if object.is_snapshot() { Self::Snapshot } else { Self::Volume }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// CSI's content source: the id of the snapshot or volume that a copy was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentSource {
    Snapshot(String),
    Volume(String),
}

impl ContentSource {
    pub(crate) fn kind(&self) -> VolumeKind {
        match self {
            Self::Snapshot(_) => VolumeKind::Snapshot,
            Self::Volume(_) => VolumeKind::Volume,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Snapshot(id) | Self::Volume(id) => id,
        }
    }

    /// Returns the annotation of a copy that has the id of its source. `spec.source` has the name of an object that may
    /// be gone.
    pub(super) fn annotation(&self, flavor: ApiFlavor) -> &'static str {
        match self {
            Self::Snapshot(_) => flavor.source_snapshot_id(),
            Self::Volume(_) => flavor.source_volume_id(),
        }
    }

    /// Reads the annotation of a copy. Those that TopoLVM made have none.
    pub(super) fn from_annotations(flavor: ApiFlavor, object: &LogicalVolume) -> Option<Self> {
        let annotation = |key: &str| object.annotation(key).map(str::to_owned);
        let snapshot = annotation(flavor.source_snapshot_id()).map(Self::Snapshot);
        snapshot.or_else(|| annotation(flavor.source_volume_id()).map(Self::Volume))
    }

    /// Returns the source of a copy: that of its annotation, else the object which has the source's name now. If that
    /// is gone, too, its name serves as the id, because CSI requires one; nothing has that id.
    fn from_object(flavor: ApiFlavor, object: &LogicalVolume, informer: &VolumeInformer) -> Option<Self> {
        let name = object.spec.source.as_str();
        if name.is_empty() {
            return None;
        }
        Self::from_annotations(flavor, object).or_else(|| {
            let source = informer.cache.get(name);
            let id = source.as_deref().and_then(LogicalVolume::volume_id).unwrap_or(name).to_owned();
            let is_snapshot = source.is_some_and(|source| source.is_snapshot());
            Some(if is_snapshot { Self::Snapshot(id) } else { Self::Volume(id) })
        })
    }
}

/// A volume or snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// CSI's id: UID of the object and name of the LV in LVM.
    pub(crate) id: String,
    /// Real size in bytes, as rounded up by LVM.
    pub(crate) bytes: u64,
    /// Bytes that it was requested with, of a snapshot those of its source: the least that a copy can ask for.
    pub(crate) requested_bytes: u64,
    /// Name of the node that has the LV.
    pub(crate) node: String,
    /// The source of a copy.
    pub(crate) source: Option<ContentSource>,
    /// Creation time of the object. The API server wrote it, once: every answer about a snapshot has the same time.
    pub(crate) created: Option<Timestamp>,
    /// The group of snapshots that it is a member of.
    pub(crate) group: Option<SnapshotGroup>,
    /// True if the node reports that it was taken at the same moment as the others of its group.
    pub(crate) is_taken_together: bool,
    /// Set if the node reports that LVM has lost the LV: the message names the fix.
    pub(crate) lost: Option<String>,
}

impl Volume {
    /// Reads the object; `None` before its LV exists. Until TopoLVM's agent reports the real size, the requested size
    /// is used.
    pub(super) fn from_object(flavor: ApiFlavor, object: &LogicalVolume, informer: &VolumeInformer) -> Option<Self> {
        Some(Self {
            id: object.volume_id()?.to_owned(),
            bytes: size_bytes(object),
            requested_bytes: requested_bytes(flavor, object),
            node: object.spec.node_name.clone(),
            source: ContentSource::from_object(flavor, object, informer),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            group: SnapshotGroup::of(flavor, object),
            is_taken_together: object.taken_together().is_some(),
            lost: object.is_lost().then(|| lost_message(object)),
        })
    }
}

/// Returns the bytes that the volume was requested with: rounded up where only that is known, but never more than it
/// has.
pub(super) fn requested_bytes(flavor: ApiFlavor, object: &LogicalVolume) -> u64 {
    let recorded = object.annotation(flavor.requested_size()).and_then(|size| parse_bytes(&Quantity(size.into())).ok());
    let real = size_bytes(object);
    recorded.or_else(|| parse_bytes(&object.spec.size).ok()).unwrap_or(real).min(real)
}

/// Returns the real size in bytes, else the requested size, else 0.
pub(super) fn size_bytes(object: &LogicalVolume) -> u64 {
    object.current_bytes().or_else(|| parse_bytes(&object.spec.size).ok()).unwrap_or(0)
}
