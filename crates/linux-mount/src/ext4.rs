//! Parses the size in an ext4 superblock (kernel documentation, ext4 "Super Block").

use std::ops::Range;

/// Offset of the superblock on the device, in bytes.
pub(crate) const OFFSET: u64 = 1024;
/// Length of the superblock, in bytes.
pub(crate) const LENGTH: usize = 1024;

const BLOCKS_LOW: Range<usize> = 0x04..0x08;
const LOG_BLOCK_SIZE: Range<usize> = 0x18..0x1c;
const MAGIC: Range<usize> = 0x38..0x3a;
const INCOMPATIBLE_FEATURES: Range<usize> = 0x60..0x64;
const BLOCKS_HIGH: Range<usize> = 0x150..0x154;
const FEATURE_64BIT: u32 = 0x80;

/// Returns the sizes of the filesystem and of one of its blocks, in bytes; `None` for what is no superblock.
pub(crate) fn size(superblock: &[u8]) -> Option<(u64, u64)> {
    let number = |range: Range<usize>| Some(u32::from_le_bytes(superblock.get(range)?.try_into().ok()?));
    if superblock.get(MAGIC)? != [0x53, 0xef] {
        return None;
    }
    let block = 1024_u64.checked_shl(number(LOG_BLOCK_SIZE)?)?;
    let high = if number(INCOMPATIBLE_FEATURES)? & FEATURE_64BIT == 0 { 0 } else { number(BLOCKS_HIGH)? };
    let blocks = u64::from(high) << 32 | u64::from(number(BLOCKS_LOW)?);
    Some((blocks.checked_mul(block)?, block))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(blocks: u64, log_block_size: u32, features: u32) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        bytes[BLOCKS_LOW].copy_from_slice(&blocks.to_le_bytes()[..4]);
        bytes[BLOCKS_HIGH].copy_from_slice(&blocks.to_le_bytes()[4..]);
        bytes[LOG_BLOCK_SIZE].copy_from_slice(&log_block_size.to_le_bytes());
        bytes[INCOMPATIBLE_FEATURES].copy_from_slice(&features.to_le_bytes());
        bytes[MAGIC].copy_from_slice(&[0x53, 0xef]);
        bytes
    }

    #[test]
    fn the_size_is_blocks_times_block_size() {
        assert_eq!(size(&superblock(262_144, 2, 0)), Some((1 << 30, 4096)));
        assert_eq!(size(&superblock(1 << 33, 2, FEATURE_64BIT)), Some((1 << 45, 4096)));
        assert_eq!(size(&superblock(1 << 33 | 1024, 0, 0)), Some((1 << 20, 1024)));
    }

    #[test]
    fn what_is_no_superblock_has_no_size() {
        assert_eq!(size(&[0; LENGTH]), None);
        assert_eq!(size(&[]), None);
        assert_eq!(size(&superblock(1, 99, 0)), None);
    }
}
