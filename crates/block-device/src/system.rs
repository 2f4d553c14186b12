//! The disks of this machine.

use std::io;
use std::path::PathBuf;

use crate::open::OpenDevice;
use crate::{Disk, Machine, OpenDisk, disk_list};

/// This machine.
#[derive(Clone, Debug)]
pub struct SystemMachine {
    /// Directory with the machine's own `/dev`, `/proc` and `/sys`.
    root: PathBuf,
}

impl SystemMachine {
    /// Returns the machine below this directory: `/`, or `/proc/1/root` in a container that shares the machine's
    /// process table.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl Machine for SystemMachine {
    fn disks(&self) -> io::Result<Vec<Disk>> {
        disk_list::read(&self.root)
    }

    fn open(&self, disk: &Disk) -> io::Result<Box<dyn OpenDisk>> {
        let path = self.root.join(disk.path.trim_start_matches('/'));
        let open = OpenDevice::open(&path, disk.number)?;
        // The number may have gone to another disk since the disks were listed, but not any more
        if disk_list::read_sequence(&self.root, &disk.name) != disk.sequence {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another disk now has this device name"));
        }
        Ok(Box::new(open))
    }
}
