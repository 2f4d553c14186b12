//! Checks whether a disk is blank: reads its beginning, its end and places in between.

use std::io;

/// Bytes of the beginning and of the end that are read whole. Signatures of all known formats are in them: the last
/// one, of LUKS 2, begins before 4 MiB.
const ENDS: u64 = 4 << 20;
/// Places in between that are read, evenly apart.
const SAMPLES: u64 = 32;
/// Bytes that are read at once, a multiple of all sector sizes.
const PIECE: usize = 64 << 10;
/// Copies of the superblock of btrfs, of which the first may have been overwritten.
const MIRRORS: [u64; 2] = [64 << 20, 256 << 30];

/// The contents of a disk, as far as they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeros wherever it was read, or ones, as some flash disks answer where nothing was written since they were
    /// discarded.
    Blank,
    /// Something else, first at this byte.
    Data(u64),
}

/// Examines a disk of so many bytes. `read` fills the buffer from a place, or fails.
pub(crate) fn examine(size: u64, mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<Contents> {
    let piece = u64::try_from(PIECE).unwrap_or(u64::MAX);
    let mut buffer = AlignedPiece::new();
    let mut blank = None;
    for place in places(size, piece) {
        let length = usize::try_from(size.saturating_sub(place)).unwrap_or(PIECE).min(PIECE);
        let bytes = buffer.get(length).ok_or(io::ErrorKind::InvalidInput)?;
        read(place, bytes)?;
        for (byte, offset) in bytes.iter().zip(place..) {
            let is_blank = matches!(byte, 0 | 0xff) && *blank.get_or_insert(*byte) == *byte;
            if !is_blank {
                return Ok(Contents::Data(offset));
            }
        }
    }
    Ok(Contents::Blank)
}

/// Reads the first bytes of a disk with `read`, which fills the buffer from a place.
pub(crate) fn read_first(read: impl FnOnce(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut buffer = AlignedPiece::new();
    read(0, buffer.get(AlignedPiece::ALIGNMENT).ok_or(io::ErrorKind::InvalidInput)?)
}

/// Returns where the pieces to read begin, in order.
fn places(size: u64, piece: u64) -> Vec<u64> {
    let whole = |from: u64, to: u64| (from / piece..to.div_ceil(piece)).map(move |number| number * piece);
    let tail = size.saturating_sub(ENDS);
    let mut places: Vec<_> = whole(0, ENDS.min(size)).chain(whole(tail, size)).collect();
    let step = size / SAMPLES;
    places.extend((1..SAMPLES).map(|sample| sample * step / piece * piece));
    places.extend(MIRRORS.iter().filter(|mirror| **mirror < size));
    places.sort_unstable();
    places.dedup();
    places
}

/// Memory for a piece, aligned as direct I/O wants it.
struct AlignedPiece(Vec<u8>);

impl AlignedPiece {
    /// Alignment that is enough for every sector size that is in use.
    const ALIGNMENT: usize = 4096;

    fn new() -> Self {
        Self(vec![0; PIECE + Self::ALIGNMENT])
    }

    fn get(&mut self, length: usize) -> Option<&mut [u8]> {
        let start = self.0.as_ptr().align_offset(Self::ALIGNMENT);
        self.0.get_mut(start..start.checked_add(length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examines a disk of this byte everywhere but at one place.
    fn examine_with(size: u64, usual: u8, at: Option<(u64, u8)>) -> Contents {
        examine(size, |place, buffer| {
            buffer.fill(usual);
            if let Some((offset, byte)) = at
                && let Some(inside) = offset.checked_sub(place)
                && let Some(found) = buffer.get_mut(usize::try_from(inside).unwrap())
            {
                *found = byte;
            }
            Ok(())
        })
        .unwrap()
    }

    const SIZE: u64 = (100 << 30) + 512;

    #[test]
    fn zeros_and_ones_are_blank_and_a_mixture_is_not() {
        assert_eq!(examine_with(SIZE, 0, None), Contents::Blank);
        assert_eq!(examine_with(SIZE, 0xff, None), Contents::Blank);
        assert_eq!(examine_with(SIZE, 0, Some((SIZE - 1, 0xff))), Contents::Data(SIZE - 1));
        assert_eq!(examine_with(SIZE, 0x5a, None), Contents::Data(0));
    }

    #[test]
    fn each_byte_of_both_ends_counts() {
        for offset in
            [0, 1, 510, 1080, 32 << 10, (64 << 10) + 64, (4 << 20) - 1, SIZE - (4 << 20), SIZE - 512, SIZE - 1]
        {
            assert_eq!(examine_with(SIZE, 0, Some((offset, 1))), Contents::Data(offset), "{offset}");
        }
    }

    #[test]
    fn a_copy_of_a_superblock_and_old_data_in_the_middle_are_found() {
        for offset in [(64 << 20) + 64, SIZE / 32 / 65536 * 65536, SIZE / 2 / 65536 * 65536] {
            assert_eq!(examine_with(SIZE, 0, Some((offset, 1))), Contents::Data(offset), "{offset}");
        }
    }

    #[test]
    fn small_disks_are_read_whole() {
        for size in [512, 4096, 65536 + 512, 5 << 20] {
            assert_eq!(examine_with(size, 0, None), Contents::Blank, "{size}");
            assert_eq!(examine_with(size, 0, Some((size - 1, 7))), Contents::Data(size - 1), "{size}");
        }
    }

    #[test]
    fn a_disk_that_cannot_be_read_at_one_place_is_an_error() {
        for unreadable in [0, 64 << 20, SIZE / 2 / 65536 * 65536, SIZE - 1] {
            let examined = examine(SIZE, |place, buffer| {
                let end = place + u64::try_from(buffer.len()).unwrap();
                if (place..end).contains(&unreadable) { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
            });
            assert_eq!(examined.unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{unreadable}");
        }
    }
}
