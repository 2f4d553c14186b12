//! Filesystem types of volumes, and what differs between them in mounting and repair. Their commands are in
//! [`crate::filesystem_commands`].

use std::fmt;

/// A filesystem type that the agent makes, mounts and grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// ext4, the default.
    Ext4,
    /// XFS, not below 300 MiB.
    Xfs,
    /// Btrfs, not below some 110 MiB.
    Btrfs,
}

/// Error of a filesystem type that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filesystem {0:?} is not supported; set csi.storage.k8s.io/fstype of the StorageClass to ext4, xfs or btrfs")]
pub struct UnsupportedFilesystem(pub(crate) String);

impl Filesystem {
    /// Parses a filesystem type as CSI and `blkid` spell it; the empty name means the default.
    pub fn parse(name: &str) -> Result<Self, UnsupportedFilesystem> {
        match name {
            "" | "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            "btrfs" => Ok(Self::Btrfs),
            other => Err(UnsupportedFilesystem(other.to_owned())),
        }
    }

    /// Returns the name, as the kernel, `blkid` and CSI spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Returns the mount option for a copy in addition to its source, which has the same UUID.
    pub const fn duplicate_uuid_option(self) -> Option<&'static str> {
        match self {
            Self::Xfs => Some("nouuid"),
            // ext4 permits duplicates, and a copied btrfs gets a new UUID
            Self::Ext4 | Self::Btrfs => None,
        }
    }

    /// Returns the mount option for a device that cannot be written to: without it the journal would be replayed
    /// after a crash.
    pub const fn readonly_device_option(self) -> &'static str {
        match self {
            Self::Ext4 => "noload",
            Self::Xfs => "norecovery",
            Self::Btrfs => "rescue=nologreplay",
        }
    }

    /// Returns how an administrator repairs a damaged filesystem.
    pub const fn repair_hint(self) -> &'static str {
        match self {
            Self::Ext4 => "repair it on the node with e2fsck -f, or restore the volume from a backup",
            Self::Xfs => "repair it on the node with xfs_repair, or restore the volume from a backup",
            Self::Btrfs => {
                "inspect it on the node with btrfs check, mount it with -o rescue=all to save data, or restore the \
                 volume from a backup"
            }
        }
    }

    /// Returns how an administrator recovers a filesystem whose signature is gone.
    pub const fn recovery_hint(self) -> &'static str {
        match self {
            Self::Ext4 => {
                "e2fsck -b 32768 -B 4096, or -b 8193 -B 1024 for a small filesystem, uses a backup superblock"
            }
            Self::Xfs => "xfs_repair searches for a backup superblock",
            Self::Btrfs => "btrfs rescue super-recover uses a backup superblock",
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use topolvm_api::FILESYSTEMS;

    use super::*;

    /// The controller makes volumes for these names and refuses all others.
    #[test]
    fn exactly_what_the_controller_makes_volumes_for_can_be_mounted() {
        for name in FILESYSTEMS {
            assert_eq!(Filesystem::parse(name).unwrap().as_str(), name);
        }
        assert_eq!(Filesystem::parse("").unwrap().as_str(), FILESYSTEMS[0]);
        for name in ["XFS", "ext3", " ext4", "zfs"] {
            assert_eq!(Filesystem::parse(name), Err(UnsupportedFilesystem(name.to_owned())));
        }
    }
}
