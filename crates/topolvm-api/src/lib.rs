//! Types and names that all programs share: names per API group, `LogicalVolume`, quantities and the codec of node
//! capacities.
//!
//! This crate is pure: it spawns no task, opens no file or socket and reads neither the environment nor the clock.

mod capacity;
pub mod claim;
mod claim_names;
mod condition;
mod crd;
mod disk_operation;
mod extender_probe;
mod flavor;
mod growth;
mod io_limits;
mod layout_capacity;
mod logical_volume;
mod lvm_tags;
mod mkfs_options;
mod node_selection;
mod node_storage;
mod node_strategy;
mod operation;
mod orphans;
mod persistent_volumes;
mod quantity;
mod rebuild_policy;
mod schema;
mod snapshot_content;
mod snapshot_group;

pub use capacity::{ListedClass, NodeCapacity};
pub use claim_names::claim_names;
pub use condition::{
    IO_LIMITED, Readiness, RemovalFailure, io_limited_condition, lost_message, ready_condition, removal_condition,
};
pub use crd::{crd, disk_operation_crd, node_storage_crd};
pub use disk_operation::{DiskOperation, DiskOperationSpec, DiskOperationStatus, DiskOperationType};
pub use extender_probe::{EXTENDER_PROBE, EXTENDER_PROVEN_KEY, EXTENDER_REASON_KEY};
pub use flavor::{
    ApiFlavor, CREATED_BY, CREATED_BY_LABEL, DEFAULT_CSI_SOCKET, DEFAULT_DEVICE_CLASS_KEY, DEFAULT_LVMD_SOCKET,
    INVENTORY_AUDIENCE, RESIZEFS_REQUESTED_AT, SELECTED_NODE,
};
pub use growth::{
    Amount, GROWTH_ENABLED, GROWTH_INCREASE, GROWTH_INODES_THRESHOLD, GROWTH_LIMIT, GROWTH_THRESHOLD, GrowthThresholds,
    ParseAmountError, ParseThresholdsError,
};
pub use io_limits::{IoLimit, IoLimitError, IoLimits, VolumeIoLimits};
pub use layout_capacity::LayoutCapacity;
pub use logical_volume::{AccessType, LogicalVolume, LogicalVolumeSpec, LogicalVolumeStatus};
pub use lvm_tags::{lvm_tags, tag_value};
pub use mkfs_options::{MkfsOptionError, MkfsOptions};
pub use node_selection::{
    HAS_VOLUMES_LABEL, NodeSelection, NodeState, ParseNodeSelectionError, STORAGE_LABEL, SUPEREDGE_LABEL,
};
pub use node_storage::{
    DeviceClassStatus, DiskGroupStatus, DiskStatus, DiskVolumeStatus, EvacuationStatus, NodeStorage, NodeStorageStatus,
    PhysicalVolumeStatus, ThinPoolStatus, VolumeGroupStatus,
};
pub use node_strategy::{NodeStrategy, ParseNodeStrategyError};
pub use operation::{OperationStatus, Phase, Progress};
pub use orphans::{NodeOrphans, OrphanedVolume, same_lv};
pub use persistent_volumes::{refers_to, waits_for_removal};
pub use quantity::{ParseQuantityError, format_bytes, parse_bytes};
pub use rebuild_policy::{REBUILDING_FINALIZERS, RebuildPolicies, RebuildPolicy, RebuildPolicyError, RebuildTrigger};
pub use snapshot_content::{
    SNAPSHOT_GROUP, SnapshotContent, SnapshotContentError, SnapshotContentSource, SnapshotContentSpec,
    SnapshotContentStatus,
};
pub use snapshot_group::{MAX_SNAPSHOT_GROUP, SnapshotGroup, taken_together_condition};

/// Number of bytes in one GiB.
pub const GIB: u64 = 1 << 30;

/// The filesystems that the agents make, as CSI, `mkfs` and the kernel spell them.
pub const FILESYSTEMS: [&str; 3] = [DEFAULT_FILESYSTEM, "xfs", "btrfs"];

/// The filesystem of a volume whose StorageClass names none.
pub const DEFAULT_FILESYSTEM: &str = "ext4";

/// Volume sizes are rounded up to this many bytes, a page on every machine that we run on.
pub const SECTOR_SIZE: u64 = 4096;
