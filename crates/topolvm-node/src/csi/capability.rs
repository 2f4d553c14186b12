//! Parses a CSI volume capability: access type, access mode, filesystem and mount options.

use linux_mount::{Filesystem, MkfsOptionError, MkfsOptions, MountOptions};
use topolvm_proto::csi;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType};

use super::error::RequestError;

/// Access type of a volume, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A filesystem, mounted on a directory. Wrong options for mkfs are an error only when a filesystem is to be
    /// made: a volume that has one since earlier versions made it is mounted.
    Mount { filesystem: Filesystem, options: MountOptions, mkfs_options: Result<MkfsOptions, MkfsOptionError> },
    /// The raw block device.
    Block { readonly: bool },
}

impl Access {
    /// Returns whether the volume is only read.
    pub(crate) const fn is_readonly(&self) -> bool {
        match self {
            Self::Mount { options, .. } => options.is_readonly(),
            Self::Block { readonly } => *readonly,
        }
    }
}

/// Parses a volume capability. The second value is true if the access mode allows only one target path
/// (`SINGLE_NODE_SINGLE_WRITER`).
pub(super) fn parse_capability(
    capability: Option<csi::VolumeCapability>,
    readonly: bool,
    mkfs_options: Option<&String>,
) -> Result<(Access, bool), RequestError> {
    let capability = capability.ok_or(RequestError::Missing("volume_capability"))?;
    let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, AccessMode::mode);
    let access_type = capability.access_type.ok_or(RequestError::Missing("volume_capability.access_type"))?;
    let exclusive = match mode {
        // What kubelet asks for depends on its version and on our capabilities: ReadWriteOnce is one of the first
        // two, ReadWriteOncePod the first or the last
        Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => false,
        Mode::SingleNodeSingleWriter => true,
        Mode::Unknown
        | Mode::SingleNodeReaderOnly
        | Mode::MultiNodeReaderOnly
        | Mode::MultiNodeSingleWriter
        | Mode::MultiNodeMultiWriter => return Err(RequestError::AccessMode(mode.as_str_name())),
    };
    let access = match access_type {
        AccessType::Mount(mount) => Access::Mount {
            filesystem: Filesystem::parse(&mount.fs_type)?,
            options: MountOptions::parse(readonly, &mount.mount_flags)?,
            mkfs_options: MkfsOptions::parse(&mount.fs_type, mkfs_options.map_or("", String::as_str)),
        },
        AccessType::Block(_) => Access::Block { readonly },
    };
    Ok((access, exclusive))
}
