//! The volume that a call works on, and the filesystem that the call asks for.

use std::path::{Path, PathBuf};

use linux_mount::{BlockDevice, Filesystem, MkfsOptionError, MkfsOptions, MountOptions};
use lvmd_client::Lv;
use topolvm_api::LogicalVolume;

/// A volume: its LogicalVolume object, its LV, and its open device.
pub(super) struct Volume<'a> {
    pub(super) object: &'a LogicalVolume,
    pub(super) lv: &'a Lv,
    pub(super) device: BlockDevice,
    /// Path of the device node, for programs. Messages and the mount table have the path of the LV.
    pub(super) node: &'a Path,
    /// Another path at which the volume is published. Its filesystem is in use then, and must not be checked or
    /// formatted.
    pub(super) other: Option<PathBuf>,
}

/// The filesystem that a call asks for.
pub(super) struct WantedFilesystem<'a> {
    pub(super) filesystem: Filesystem,
    pub(super) options: &'a MountOptions,
    pub(super) mkfs_options: &'a Result<MkfsOptions, MkfsOptionError>,
    /// Path at which it is mounted already, to be bound from there.
    pub(super) staging: Option<&'a Path>,
}
