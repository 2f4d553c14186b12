//! Parses the field of the XFS superblock that shows whether mkfs has ended (kernel documentation, XFS "Superblocks").

/// Offset of the first superblock on the device, in bytes.
pub(crate) const OFFSET: u64 = 0;
/// Length of the part that is read, in bytes.
pub(crate) const LENGTH: usize = 512;

const IN_PROGRESS: usize = 126;

/// Returns whether mkfs.xfs was interrupted. No kernel mounts such a filesystem, so that it has never held any data.
pub(crate) fn mkfs_is_incomplete(superblock: &[u8]) -> bool {
    superblock.starts_with(b"XFSB") && superblock.get(IN_PROGRESS).is_some_and(|&flag| flag != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_superblock_with_the_flag_is_half_made() {
        let mut superblock = [0; LENGTH];
        superblock[..4].copy_from_slice(b"XFSB");
        assert!(!mkfs_is_incomplete(&superblock));
        superblock[IN_PROGRESS] = 1;
        assert!(mkfs_is_incomplete(&superblock));
        superblock[0] = 0;
        assert!(!mkfs_is_incomplete(&superblock));
        assert!(!mkfs_is_incomplete(&[]));
    }
}
