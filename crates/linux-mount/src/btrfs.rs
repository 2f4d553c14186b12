//! Parses the btrfs superblock: UUID, size, and whether there is a log tree (btrfs documentation, "On-disk Format").

use std::fmt::Write as _;
use std::ops::Range;

/// Offset of the first superblock on the device, in bytes.
pub(crate) const OFFSET: u64 = 64 << 10;
/// Length of the part that is read, in bytes.
pub(crate) const LENGTH: usize = 4096;

/// Smallest size in bytes to which the kernel resizes a btrfs, even if it has a smaller one (`btrfs_ioctl_resize`).
pub(crate) const SMALLEST_RESIZED: u64 = 256 << 20;

const UUID: Range<usize> = 0x20..0x30;
const MAGIC: Range<usize> = 0x40..0x48;
const LOG_ROOT: Range<usize> = 0x60..0x68;
const TOTAL_BYTES: Range<usize> = 0x70..0x78;
const SECTOR_SIZE: Range<usize> = 0x90..0x94;

/// Fields of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// UUID of the filesystem, as people write it.
    pub(crate) uuid: String,
    /// Size of the filesystem in bytes.
    pub(crate) total_bytes: u64,
    /// Size of a sector in bytes.
    pub(crate) sector_bytes: u64,
    /// True when there is a log tree, which holds what was fsynced since the last commit. It is replayed when the
    /// filesystem is mounted, and refers to the generation that the filesystem has.
    pub(crate) has_log_tree: bool,
}

impl Superblock {
    /// Parses a superblock; `None` for what is none.
    pub(crate) fn parse(superblock: &[u8]) -> Option<Self> {
        if superblock.get(MAGIC)? != b"_BHRfS_M" {
            return None;
        }
        let sector_bytes = u32::from_le_bytes(superblock.get(SECTOR_SIZE)?.try_into().ok()?);
        Some(Self {
            uuid: format_uuid(superblock.get(UUID)?)?,
            total_bytes: u64::from_le_bytes(superblock.get(TOTAL_BYTES)?.try_into().ok()?),
            sector_bytes: sector_bytes.into(),
            has_log_tree: superblock.get(LOG_ROOT)?.iter().any(|&byte| byte != 0),
        })
    }
}

/// Formats the bytes of a UUID.
fn format_uuid(bytes: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{byte:02x}").ok()?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Vec<u8> {
        let mut superblock = vec![0; LENGTH];
        superblock[MAGIC].copy_from_slice(b"_BHRfS_M");
        superblock
    }

    #[test]
    fn the_id_is_written_like_a_uuid() {
        let mut superblock = superblock();
        superblock[0x20] = 0x0b;
        superblock[0x2f] = 0xff;
        assert_eq!(Superblock::parse(&superblock).unwrap().uuid, "0b000000-0000-0000-0000-0000000000ff");
    }

    #[test]
    fn the_size_is_that_of_the_filesystem_and_not_of_the_device() {
        let mut superblock = superblock();
        superblock[TOTAL_BYTES].copy_from_slice(&(5_u64 << 40).to_le_bytes());
        superblock[SECTOR_SIZE].copy_from_slice(&4096_u32.to_le_bytes());
        let Superblock { total_bytes, sector_bytes, .. } = Superblock::parse(&superblock).unwrap();
        assert_eq!((total_bytes, sector_bytes), (5 << 40, 4096));
    }

    #[test]
    fn a_log_tree_is_seen() {
        let mut superblock = superblock();
        assert!(!Superblock::parse(&superblock).unwrap().has_log_tree);
        superblock[LOG_ROOT].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert!(Superblock::parse(&superblock).unwrap().has_log_tree);
    }

    #[test]
    fn what_is_no_superblock_is_not_parsed() {
        for bytes in [&[0; LENGTH][..], &[]] {
            assert_eq!(Superblock::parse(bytes), None);
        }
    }
}
