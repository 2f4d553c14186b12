//! Volumes and snapshots as `LogicalVolume` objects: finds, lists, creates, expands and deletes them, and waits each
//! time until the node agent has done its part.
//!
//! Only the node agent writes their status. Objects that TopoLVM created carry neither our finalizer nor our label at
//! first, and no annotation of ours, so that nothing here relies on them.

mod copy;
mod create;
mod delete;
mod error;
mod existing;
mod expand;
mod list;
mod lookup;
mod modify;
mod node_choice;
mod node_strategy;
mod objects;
mod provisioning;
mod reserve;
mod selected_node;
mod snapshot_group;
mod volume;

use topolvm_api::{AccessType, IoLimits, SnapshotGroup};
use topolvm_capacity::VolumeClasses;

pub(crate) use copy::SnapshotRequest;
pub(crate) use error::{ApiFailure, VolumeError};
pub(crate) use list::{Page, PageRequest};
pub(crate) use node_choice::NodeChoice;
pub(crate) use objects::VolumeObjects;
pub(crate) use selected_node::ClaimName;
pub(crate) use snapshot_group::SnapshotGroupRequest;
pub(crate) use volume::{ContentSource, Volume, VolumeKind};

use crate::volume_size::VolumeSize;

/// The operations that create and change volumes and snapshots. [`VolumeObjects`] finds, lists and deletes them.
#[derive(Clone)]
pub(crate) struct Volumes {
    pub(crate) objects: VolumeObjects,
    pub(crate) node_choice: NodeChoice,
    /// The wall clock.
    pub(crate) now: fn() -> jiff::Timestamp,
}

/// A request for a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRequest {
    /// Name of the `LogicalVolume`.
    pub(crate) name: String,
    pub(crate) size: VolumeSize,
    /// Empty is the node's default class.
    pub(crate) device_class: String,
    /// Empty means the options of the device class.
    pub(crate) lvcreate_option_class: String,
    /// Limits of its I/O. They are no part of what the volume is: they may be others by the time of a repeated request.
    pub(crate) io_limits: IoLimits,
    /// Filesystem that the volume is mounted with; `None` for a device.
    pub(crate) filesystem: Option<String>,
    pub(crate) placement: Placement,
    /// The claim that the volume is for, where the request names it.
    pub(crate) claim: Option<ClaimName>,
    /// The source of a copy; `None` for a volume that begins empty.
    pub(crate) source: Option<CopySource>,
}

impl VolumeRequest {
    /// Returns the classes that decide which space the volume uses.
    fn classes(&self) -> VolumeClasses {
        VolumeClasses::new(&self.device_class, &self.lvcreate_option_class)
    }
}

/// The source of a copy, and the access to the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopySource {
    /// Name of the source's `LogicalVolume`.
    pub(crate) object_name: String,
    pub(crate) id: ContentSource,
    pub(crate) access: AccessType,
    /// The filesystem of the source, which the copy begins with.
    pub(crate) filesystem: Option<String>,
    /// The group of snapshots that the copy is a member of.
    pub(crate) group: Option<SnapshotGroup>,
}

/// The nodes on which a volume may be: CSI's accessibility requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Any node; the one with the most free space is taken unless the strategy prefers another.
    Anywhere,
    /// One of these nodes. A new volume is created on the first, or, if no node was selected for its claim, on the
    /// first that has enough free space or the one that the strategy prefers; one that exists may be on any other.
    Nodes {
        /// The preferred node.
        first: String,
        /// The other nodes.
        others: Vec<String>,
    },
}

impl Placement {
    /// Allows this node and no other.
    fn only(node: &str) -> Self {
        Self::Nodes { first: node.to_owned(), others: Vec::new() }
    }

    /// Returns whether another node than this one is preferred.
    fn prefers_another(&self, node: &str) -> bool {
        matches!(self, Self::Nodes { first, .. } if first != node)
    }

    /// Returns whether the volume may be on this node.
    fn accepts(&self, node: &str) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Nodes { first, others } => first == node || others.iter().any(|other| other == node),
        }
    }
}
