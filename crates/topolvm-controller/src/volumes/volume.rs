//! What an object says about the volume or snapshot that it stands for.

use jiff::Timestamp;
use topolvm_api::{ApiFlavor, LogicalVolume, lost_message, parse_bytes};

use crate::volume_informer::VolumeWatch;

/// Volumes and snapshots are both `LogicalVolume`s, and their ids look the same. To a caller that means the one, the other
/// does not exist: a snapshot is never grown, cloned or deleted as a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub(crate) fn of(object: &LogicalVolume) -> Self {
        if object.is_snapshot() { Self::Snapshot } else { Self::Volume }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// CSI's id of what a copy was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceId {
    Snapshot(String),
    Volume(String),
}

impl SourceId {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Snapshot(_) => Kind::Snapshot,
            Self::Volume(_) => Kind::Volume,
        }
    }

    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Snapshot(id) | Self::Volume(id) => id,
        }
    }

    /// The annotation with which a copy remembers its source. `spec.source` has the name of an object that may be gone.
    pub(super) fn annotation(&self, flavor: ApiFlavor) -> &'static str {
        match self {
            Self::Snapshot(_) => flavor.source_snapshot_id(),
            Self::Volume(_) => flavor.source_volume_id(),
        }
    }

    /// What the object remembers. Those that TopoLVM made remember nothing.
    pub(super) fn remembered(flavor: ApiFlavor, object: &LogicalVolume) -> Option<Self> {
        let annotation = |key: &str| object.metadata.annotations.as_ref()?.get(key).cloned();
        let snapshot = annotation(flavor.source_snapshot_id()).map(Self::Snapshot);
        snapshot.or_else(|| annotation(flavor.source_volume_id()).map(Self::Volume))
    }

    /// The source of a copy: as remembered, else that of the object which has the source's name now. Where that is gone,
    /// too, its name stands for the id, because CSI wants one; nothing has that id.
    fn of(flavor: ApiFlavor, object: &LogicalVolume, watch: &VolumeWatch) -> Option<Self> {
        let name = object.spec.source.as_str();
        if name.is_empty() {
            return None;
        }
        Self::remembered(flavor, object).or_else(|| {
            let source = watch.get(name);
            let id = source.as_ref().and_then(LogicalVolume::volume_id).unwrap_or(name).to_owned();
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
    /// The node that has it.
    pub(crate) node: String,
    /// What it was made from.
    pub(crate) source: Option<SourceId>,
    /// When the object was made. It is the API server that wrote it, once: every answer about a snapshot has the same time,
    /// whoever asks and however often.
    pub(crate) created: Option<Timestamp>,
    /// What to do about it, where its node says that LVM has it no more.
    pub(crate) lost: Option<String>,
}

impl Volume {
    /// What the object says, once its LV exists. Where TopoLVM's agent has not told the real size yet, the size that was
    /// asked for is the best there is.
    pub(super) fn of(flavor: ApiFlavor, object: &LogicalVolume, watch: &VolumeWatch) -> Option<Self> {
        Some(Self {
            id: object.volume_id()?.to_owned(),
            bytes: size(object),
            node: object.spec.node_name.clone(),
            source: SourceId::of(flavor, object, watch),
            created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            lost: object.is_lost().then(|| lost_message(object)),
        })
    }
}

/// Real size in bytes, else the size that was asked for, else 0.
pub(super) fn size(object: &LogicalVolume) -> u64 {
    object.current_bytes().or_else(|| parse_bytes(&object.spec.size).ok()).unwrap_or(0)
}
