//! The filesystems that a volume can carry. Which commands make and grow them is the business of [`crate::mount`].

use std::fmt;

/// A filesystem that we make, mount and grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filesystem {
    /// The default.
    Ext4,
}

/// A filesystem that we do not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filesystem {0:?} is not supported; set csi.storage.k8s.io/fstype of the StorageClass to ext4")]
pub struct Unsupported(pub(crate) String);

impl Filesystem {
    /// Reads a filesystem's name as CSI and `blkid` spell it; the empty name means the default.
    pub fn parse(name: &str) -> Result<Self, Unsupported> {
        match name {
            "" | "ext4" => Ok(Self::Ext4),
            other => Err(Unsupported(other.to_owned())),
        }
    }

    /// As the kernel, `blkid` and CSI spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
