//! Free bytes of the device classes of each node, after reservations that are not on the disks yet.
//!
//! Nodes publish their present free space. The scheduler has assigned more than that when it has selected a node for a
//! claim, and the controller when it has created a `LogicalVolume`: these are the reservations. They are derived from
//! API objects and stored nowhere, so that a restart forgets none and replicas agree.
//!
//! - `reservations` has the rules: a pure state machine over claims, `LogicalVolume`s and StorageClasses, with `claim`,
//!   `volume` and `storage_class` as the parsers of these objects.
//! - `published` is the free bytes that Nodes publish.
//! - [`Capacity`] is both behind a lock, for callers that feed it with events of watches and callers that query it.
//! - `informers` watches the objects that a program does not watch anyway, and feeds it.
//!
//! Nothing here depends on CSI, leader election or the extender.

mod capacity;
mod claim;
mod informers;
mod listing;
pub mod minimum_allocation;
mod published;
mod reservations;
mod storage_class;
mod totals;
mod unsettled;
mod volume;
mod volume_classes;
mod volume_key;

pub use capacity::{Capacity, ClassCapacity, FreeNode, Hold, NotEnoughSpace, Wanted};
pub use informers::{watch_claims, watch_classes, watch_nodes, watch_volumes};
pub use minimum_allocation::MinimumAllocation;
pub use published::NodeMeta;
pub use reservations::{ClaimOfVolume, Exemption};
pub use storage_class::ClassParameters;
pub use volume_classes::VolumeClasses;
