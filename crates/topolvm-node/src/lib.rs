//! The agent of one node: it serves the CSI Node service, makes, grows and removes the LVs that `LogicalVolume`
//! objects ask for, and publishes the free space of the node.
//!
//! It talks to lvmd for everything that concerns LVM, over its socket or in this process, and starts no LVM command
//! itself.

mod args;
pub mod capacity;
pub mod csi;
mod events;
mod filesystem_usages;
mod growth_reports;
mod limit_io;
pub mod reconcile;
mod run;
mod stacked_mounts;
mod target_path;
pub mod topology_label;
mod volume_devices;
mod volume_metrics;
mod volumes;

pub use args::{Args, Config, LvmdConfig};
pub use limit_io::{LimitIo, NoLimits};
pub use run::start;
pub use volume_devices::VolumeDevices;
pub use volumes::Volumes;
