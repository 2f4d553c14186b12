//! Block devices of a machine: the disks that sysfs lists, their users, whether they are blank, and the kernel's
//! messages about them.
//!
//! Everything here is read-only. Files are found below a root directory, so that a container that shares the machine's
//! process table sees the machine's own disks.

mod attachment;
mod contents;
mod disk;
mod disk_list;
mod line;
mod mounts;
mod open;
mod stack;
mod system;
mod uevents;
mod usage;

use std::fmt::Debug;
use std::io;

pub use attachment::{NETWORKS, TRANSPORTS};
pub use contents::Contents;
pub use disk::{Disk, Number};
pub use open::Claim;
pub use stack::lvm_volumes_below;
pub use system::SystemMachine;
pub use uevents::Uevents;
pub use usage::Use;

/// A machine with disks. Every call may block for as long as a disk does.
pub trait Machine: Debug + Send + Sync + 'static {
    /// Lists the disks: devices that can hold data on their own. Excluded are partitions, devices that the kernel
    /// builds on other devices or memory, and drives with a removable medium.
    fn disks(&self) -> io::Result<Vec<Disk>>;

    /// Opens a disk to read it, which claims nothing. Fails if its path leads to another device by now.
    fn open(&self, disk: &Disk) -> io::Result<Box<dyn OpenDisk>>;
}

/// An open disk. While it is open the kernel gives its number to no other.
pub trait OpenDisk: Debug + Send {
    /// Reads the first bytes, for the time that it takes.
    fn touch(&self) -> io::Result<()>;

    /// Reads the beginning, the end and places in between.
    fn contents(&self) -> io::Result<Contents>;

    /// Claims the disk, as mounting does. Fails with [`io::ErrorKind::ResourceBusy`] while a filesystem, swap, another
    /// block device or a program has claimed it or one of its partitions, in whichever namespace.
    fn claim(&self) -> io::Result<Claim>;
}
