//! Parses the btrfs superblock: UUID, size, and whether there is a log tree (btrfs documentation, "On-disk Format").

use std::fmt::Write as _;
use std::ops::Range;

/// Offset of the first superblock on the device, in bytes.
pub(super) const OFFSET: u64 = 64 << 10;
/// Length of the part that is read, in bytes.
pub(super) const LENGTH: usize = 4096;

/// Smallest size in bytes to which the kernel resizes a btrfs, even if it has a smaller one (`btrfs_ioctl_resize`).
pub(super) const SMALLEST_RESIZED: u64 = 256 << 20;

const UUID: Range<usize> = 0x20..0x30;
const MAGIC: Range<usize> = 0x40..0x48;
const LOG_ROOT: Range<usize> = 0x60..0x68;
const TOTAL_BYTES: Range<usize> = 0x70..0x78;
const SECTOR_SIZE: Range<usize> = 0x90..0x94;

/// Returns the UUID of the filesystem, as people write it; `None` for what is no superblock.
pub(super) fn uuid(superblock: &[u8]) -> Option<String> {
    check_magic(superblock)?;
    let mut text = String::with_capacity(36);
    for (index, byte) in superblock.get(UUID)?.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        write!(text, "{byte:02x}").ok()?;
    }
    Some(text)
}

/// Returns the sizes of the filesystem and of one of its sectors, in bytes; `None` for what is no superblock.
pub(super) fn size(superblock: &[u8]) -> Option<(u64, u64)> {
    check_magic(superblock)?;
    let bytes = u64::from_le_bytes(superblock.get(TOTAL_BYTES)?.try_into().ok()?);
    let sector = u32::from_le_bytes(superblock.get(SECTOR_SIZE)?.try_into().ok()?);
    Some((bytes, sector.into()))
}

/// Returns whether there is a log tree, which holds what was fsynced since the last commit. It is replayed when the
/// filesystem is mounted, and refers to the generation that the filesystem has; `None` for what is no superblock.
pub(super) fn has_log_tree(superblock: &[u8]) -> Option<bool> {
    check_magic(superblock)?;
    Some(superblock.get(LOG_ROOT)?.iter().any(|&byte| byte != 0))
}

fn check_magic(superblock: &[u8]) -> Option<()> {
    (superblock.get(MAGIC)? == b"_BHRfS_M").then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_written_like_a_uuid() {
        let mut superblock = vec![0; LENGTH];
        superblock[MAGIC].copy_from_slice(b"_BHRfS_M");
        superblock[0x20] = 0x0b;
        superblock[0x2f] = 0xff;
        assert_eq!(uuid(&superblock).unwrap(), "0b000000-0000-0000-0000-0000000000ff");
    }

    #[test]
    fn the_size_is_that_of_the_filesystem_and_not_of_the_device() {
        let mut superblock = vec![0; LENGTH];
        superblock[MAGIC].copy_from_slice(b"_BHRfS_M");
        superblock[TOTAL_BYTES].copy_from_slice(&(5_u64 << 40).to_le_bytes());
        superblock[SECTOR_SIZE].copy_from_slice(&4096_u32.to_le_bytes());
        assert_eq!(size(&superblock), Some((5 << 40, 4096)));
    }

    #[test]
    fn a_log_tree_is_seen() {
        let mut superblock = vec![0; LENGTH];
        superblock[MAGIC].copy_from_slice(b"_BHRfS_M");
        assert_eq!(has_log_tree(&superblock), Some(false));
        superblock[LOG_ROOT].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert_eq!(has_log_tree(&superblock), Some(true));
        assert_eq!(has_log_tree(&[0; LENGTH]), None);
    }

    #[test]
    fn what_is_no_superblock_has_no_id_and_no_size() {
        for bytes in [&[0; LENGTH][..], &[]] {
            assert_eq!(uuid(bytes), None);
            assert_eq!(size(bytes), None);
        }
    }
}
