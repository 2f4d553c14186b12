//! A typed driver for LVM: commands are values that can be printed, reports are read from JSON, and each failure is an
//! [`Error`] variant instead of a text.
//!
//! All commands go through a [`CommandRunner`]; [`SystemRunner`] starts real processes. State that is visible without
//! LVM is read through [`Devices`]. Apart from these the crate starts no process, and reads neither the environment nor
//! a clock. All sizes are bytes.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

mod active_parts;
mod command;
mod devices;
mod driver;
mod error;
mod freeze;
mod group_lock;
mod host_settings;
mod interrupted_moves;
mod layout;
mod lv_attr;
pub mod metadata;
mod name;
mod output;
pub mod relocation;
mod repair;
pub mod report;
mod runner;
mod served_groups;
mod system;
mod thin_device;
mod volume;
mod wipe;

pub use command::{Effect, LvmCommand, NewPool, NewSnapshot, NewVolume, PoolSizes, Striping, TagChanges};
pub use devices::{DeviceStatus, Devices, SystemDevices};
pub use driver::{Changed, CreatedBatch, Lvm};
pub use error::{Error, Refusal};
pub use freeze::Freeze;
pub use group_lock::GroupLock;
pub use host_settings::HostSettings;
pub use layout::{Layout, OptionsFor, RefusedOptions, Shape, check_options};
pub use lv_attr::{InvalidLvAttr, LvAttr, Problem, State, VolumeType};
pub use metadata::Version;
pub use name::{FullName, InvalidName, LvName, Tag, VgName, is_uuid};
pub use output::{Output, RunError};
pub use repair::RepairError;
pub use report::{GroupDisk, ReportError, UsedRange};
pub use runner::CommandRunner;
pub use system::{Placement, PrefixError, SystemRunner};
pub use volume::{Device, LogicalVolume, PhysicalVolume, Segment, VolumeGroup, is_device_of_move};
pub use wipe::{Wipe, Wipeable};

/// A machine with LVM: commands and devices.
pub trait Host: CommandRunner + Debug {
    /// The port to its devices.
    type Devices: Devices;

    /// Returns its devices.
    fn devices(&self) -> Arc<Self::Devices>;

    /// Returns the directory with the machine's own `/dev`, `/proc` and `/sys`.
    fn root(&self) -> PathBuf;
}
