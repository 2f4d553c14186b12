//! The one field of the XFS superblock that says whether mkfs has come to its end (kernel documentation, XFS "Superblocks").

/// Where the first superblock lies on the device, in bytes.
pub(super) const OFFSET: u64 = 0;
/// How much of it is looked at, in bytes.
pub(super) const LENGTH: usize = 512;

const IN_PROGRESS: usize = 126;

/// Whether mkfs.xfs has begun to make the filesystem and was broken off. No kernel mounts it, so that it has never held any data.
pub(super) fn is_half_made(superblock: &[u8]) -> bool {
    superblock.starts_with(b"XFSB") && superblock.get(IN_PROGRESS).is_some_and(|&flag| flag != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_superblock_with_the_flag_is_half_made() {
        let mut superblock = [0; LENGTH];
        superblock[..4].copy_from_slice(b"XFSB");
        assert!(!is_half_made(&superblock));
        superblock[IN_PROGRESS] = 1;
        assert!(is_half_made(&superblock));
        superblock[0] = 0;
        assert!(!is_half_made(&superblock));
        assert!(!is_half_made(&[]));
    }
}
