//! The filesystems that a volume can carry. Which commands make and grow them is the business of [`crate::mount`].

use std::fmt;

/// A filesystem that we make, mount and grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// The default.
    Ext4,
    /// Not below 300 MiB.
    Xfs,
    /// Not below some 110 MiB.
    Btrfs,
}

/// A filesystem that we do not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filesystem {0:?} is not supported; set csi.storage.k8s.io/fstype of the StorageClass to ext4, xfs or btrfs")]
pub struct Unsupported(pub(crate) String);

impl Filesystem {
    /// Reads a filesystem's name as CSI and `blkid` spell it; the empty name means the default.
    pub fn parse(name: &str) -> Result<Self, Unsupported> {
        match name {
            "" | "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            "btrfs" => Ok(Self::Btrfs),
            other => Err(Unsupported(other.to_owned())),
        }
    }

    /// As the kernel, `blkid` and CSI spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The mount option that lets a copy be mounted beside its source, which has the same UUID.
    pub const fn copy_option(self) -> Option<&'static str> {
        match self {
            Self::Xfs => Some("nouuid"),
            // ext4 does not care, and a copied btrfs gets a UUID of its own
            Self::Ext4 | Self::Btrfs => None,
        }
    }

    /// The mount option without which a device that cannot be written to cannot be mounted after a crash: the journal
    /// is left as it is.
    pub const fn readonly_device_option(self) -> &'static str {
        match self {
            Self::Ext4 => "noload",
            Self::Xfs => "norecovery",
            Self::Btrfs => "rescue=nologreplay",
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
            assert_eq!(Filesystem::parse(name), Err(Unsupported(name.to_owned())));
        }
    }
}
