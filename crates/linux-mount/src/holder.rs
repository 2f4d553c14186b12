//! Holders of devices and mounts, and their names in messages.

use std::fmt;
use std::path::PathBuf;

use super::processes::ProcessName;

/// A user of a device, or a place that has its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// The device, or the filesystem on it, is mounted here.
    Mounted(PathBuf),
    /// A container has the node.
    Container {
        /// A process of the container.
        process: ProcessName,
        /// Path of the node in the container.
        path: PathBuf,
    },
    /// The filesystem on the device, or a directory of it, is mounted in the mount namespace of a process.
    MountedFor {
        /// The process.
        process: ProcessName,
        /// Path of the mount there.
        path: PathBuf,
    },
    /// A process has the device open.
    Open(ProcessName),
    /// A process works in the filesystem on the device, or has a file of it open, although it is mounted nowhere.
    Files(ProcessName),
    /// A device is made of this one: device-mapper, RAID or bcache.
    Stacked {
        /// Name of the other device.
        name: String,
        /// Command that removes it.
        command: String,
    },
    /// It is the file of this loop device.
    Loop(String),
    /// It is swap space.
    Swap(PathBuf),
    /// A filesystem has it that is mounted nowhere.
    Frozen(PathBuf),
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(path) => write!(f, "mounted at {}", path.display()),
            Self::Container { process, path } => write!(f, "{} for {process}", path.display()),
            Self::MountedFor { process, path } => write!(f, "mounted at {} for {process}", path.display()),
            Self::Open(process) => write!(f, "open in {process}"),
            Self::Files(process) => {
                write!(f, "unmounted, but still used by {process} (working directory or open file)")
            }
            Self::Stacked { name, command } => write!(f, "used by {name} (remove it with {command})"),
            Self::Loop(name) => write!(f, "backing file of {name} (detach it with losetup --detach {name})"),
            Self::Swap(path) => write!(f, "swap space (swapoff {})", path.display()),
            Self::Frozen(path) => write!(
                f,
                "held by a filesystem without a mount, probably because it was frozen when it was unmounted (mount {} \
                 at a directory, then fsfreeze --unfreeze DIRECTORY and umount DIRECTORY)",
                path.display()
            ),
        }
    }
}

/// A holder of a mount, which keeps it from being unmounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountHolder {
    /// Something is mounted at this path below it.
    Mount(PathBuf),
    /// A process works in it or has a file of it open.
    Process {
        /// The process.
        process: ProcessName,
        /// The directory or file.
        path: PathBuf,
    },
    /// A file of it is a loop device.
    Loop {
        /// Path of the loop device.
        name: String,
        /// The file.
        file: PathBuf,
    },
    /// A file of it is swap space.
    Swap(PathBuf),
}

impl fmt::Display for MountHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(path) => write!(f, "something is mounted at {} (umount {})", path.display(), path.display()),
            Self::Process { process, path } => write!(f, "{process} uses {}", path.display()),
            Self::Loop { name, file } => {
                write!(f, "{} is the backing file of {name} (losetup --detach {name})", file.display())
            }
            Self::Swap(path) => write!(f, "{} is swap space (swapoff {})", path.display(), path.display()),
        }
    }
}
