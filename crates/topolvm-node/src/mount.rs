//! Mounts, filesystems and block devices of this machine, and limits of their I/O, behind the port [`Mounter`]. Only
//! this module calls mount(2) and starts processes.

mod blocking;
mod btrfs;
mod cgroups;
mod command;
mod contents;
mod device;
mod device_number;
mod device_uses;
mod disk_statistics;
mod error;
mod ext4;
pub(crate) mod filesystem_commands;
mod freeze;
mod host_mounts;
mod hung_paths;
mod hung_task;
pub(crate) mod kubelet_paths;
mod mount_table;
mod mounter;
mod options;
mod system_mounter;
pub(crate) mod target_path;
mod usage_batch;
mod xfs;

pub(crate) use blocking::{FILE_DEADLINE, run_blocking};
pub use cgroups::{LimitError, LimitsInForce, PodLimits};
pub use contents::Contents;
pub use device::{BlockDevice, FilesystemUsage, OpenDevice, PathKind};
pub use device_number::DeviceNumber;
pub use device_uses::DeviceUse;
pub use disk_statistics::DiskStatistics;
pub use error::MountError;
pub use host_mounts::unmount_repeated;
pub(crate) use hung_paths::HungPaths;
pub use hung_task::HungTask;
pub use mount_table::Mount;
pub use mounter::Mounter;
pub use options::{MountOptions, OptionError};
pub use system_mounter::SystemMounter;
pub use topolvm_api::{MkfsOptionError, MkfsOptions};
pub use usage_batch::UsageBatch;
