//! Mounts, filesystems and block devices of a Linux machine, the cgroup I/O limits of pods, and what keeps a device or
//! a mount in use, behind the port [`Mounter`]. Only this crate calls mount(2) and starts the programs of filesystems.
//!
//! It has no client of any service: the caller names devices, paths, pods and limits.

mod blocking;
mod btrfs;
mod cgroups;
mod command;
mod contents;
mod device;
mod device_holders;
mod device_number;
mod device_uses;
mod disk_statistics;
mod error;
mod ext4;
mod filesystem;
mod filesystem_commands;
mod freeze;
mod holder;
mod host_mounts;
mod hung_paths;
mod hung_task;
mod mount_holders;
mod mount_table;
mod mounter;
mod options;
mod processes;
mod system_mounter;
mod usage_batch;
mod xfs;

pub use blocking::{FILE_DEADLINE, run_blocking};
pub use cgroups::{LimitError, LimitsInForce, PodLimits};
pub use contents::Contents;
pub use device::{BlockDevice, FilesystemUsage, OpenDevice, PathKind};
pub use device_number::DeviceNumber;
pub use disk_statistics::DiskStatistics;
pub use error::MountError;
pub use filesystem::{Filesystem, UnsupportedFilesystem};
pub use filesystem_commands::leaves_discard;
pub use holder::{DeviceUse, MountHolder};
pub use host_mounts::{count_stacked_mounts, unmount_repeated};
pub use hung_paths::HungPaths;
pub use hung_task::HungTask;
pub use mount_table::Mount;
pub use mounter::Mounter;
pub use options::{MountOptions, OptionError};
pub use processes::{ContainerName, ProcessName};
pub use system_mounter::SystemMounter;
pub use topolvm_api::{MkfsOptionError, MkfsOptions};
pub use usage_batch::UsageBatch;
