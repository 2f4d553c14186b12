//! The configuration of lvmd, and what it means: pure functions from device classes, disk groups and reports of LVM to
//! free space, the next step for a thin pool, and the marks on volumes and disks.
//!
//! [`load`] reads and checks the configuration file. The LVM [`tags`] that lvmd writes and reads are here, too, because
//! free space depends on them. Nothing here runs LVM.

mod capacity;
mod config;
mod device_class;
mod disk_group;
mod disk_report;
mod machine;
pub mod tags;

pub use capacity::{Capacity, ClassCapacity, LayoutCapacity, RefusedCreations, ThinPoolUsage};
pub use config::keys::Key;
pub use config::{Config, InvalidConfig, load, load_socket};
pub use device_class::{
    DeviceClass, DeviceClasses, FreeSpace, InvalidRatio, NewSizes, OptionClass, OverprovisionRatio, PoolGrowth,
    PoolPlan, PoolRefusal, PoolShare, PoolStep, ThinPool,
};
pub use disk_group::{
    DiskGroup, DiskGroups, InvalidLabel, Mode, NodeLabels, NodeSelector, Pattern, Selector, WantedLabel,
    disk_group_tag, parse_node_labels,
};
pub use disk_report::{DiskFinding, DiskReport, DiskState, Evacuation, GroupFinding, Refusal};
pub use machine::Machine;
