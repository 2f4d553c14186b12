//! Uses of a disk.

use std::fmt;

/// One thing that uses a disk or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has this partition.
    Partition(String),
    /// This block device is made of it: a volume, a RAID, an encrypted device, another path to it.
    Holder(String),
    /// A filesystem on this device, the disk itself or a part of it, is mounted.
    Mounted {
        /// The kernel's name of the device.
        device: String,
        /// Directory at which it is mounted.
        directory: String,
    },
    /// This device is swap space.
    Swap(String),
    /// Its device file is mounted at another place, as kubelet does with the block volume of a pod.
    Published(String),
    /// This loop device has it as its file, which kubelet makes for the block volume of a pod.
    Loop(String),
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(name) => write!(f, "has the partition {name}"),
            Self::Holder(name) => write!(f, "is used by {name}"),
            Self::Mounted { device, directory } => write!(f, "{device} is mounted at {directory}"),
            Self::Swap(name) => write!(f, "{name} is swap space"),
            Self::Published(path) => write!(f, "its device is mounted at {path}"),
            Self::Loop(name) => write!(f, "is the backing file of {name}"),
        }
    }
}
