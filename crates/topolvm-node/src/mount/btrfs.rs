//! The few fields of the btrfs superblock that say which filesystem it is (btrfs documentation, "On-disk Format").

use std::fmt::Write as _;
use std::ops::Range;

/// Where the first superblock lies on the device, in bytes.
pub(super) const OFFSET: u64 = 64 << 10;
/// How much of it is looked at, in bytes.
pub(super) const LENGTH: usize = 4096;

const ID: Range<usize> = 0x20..0x30;
const MAGIC: Range<usize> = 0x40..0x48;

/// The filesystem's UUID as people write it; `None` for what is no superblock.
pub(super) fn id(superblock: &[u8]) -> Option<String> {
    if superblock.get(MAGIC)? != b"_BHRfS_M" {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (index, byte) in superblock.get(ID)?.iter().enumerate() {
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

    #[test]
    fn the_id_is_written_like_a_uuid() {
        let mut superblock = vec![0; LENGTH];
        superblock[MAGIC].copy_from_slice(b"_BHRfS_M");
        superblock[0x20] = 0x0b;
        superblock[0x2f] = 0xff;
        assert_eq!(id(&superblock).unwrap(), "0b000000-0000-0000-0000-0000000000ff");
    }

    #[test]
    fn what_is_no_superblock_has_no_id() {
        assert_eq!(id(&[0; LENGTH]), None);
        assert_eq!(id(&[]), None);
    }
}
