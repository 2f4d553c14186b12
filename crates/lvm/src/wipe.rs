//! Wiping what is on a block device, piece by piece.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::Device;

/// Direct I/O is done in such pieces at such places: the largest sector size that is in use.
const BLOCK: usize = 4096;
/// So much is written at once.
const ZEROS: usize = 1 << 20;

/// How a volume is wiped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wipe {
    /// The device is told that nothing is needed any more. Zeros are written where it does not take that.
    Discard,
    /// The device reads as zeros afterwards.
    Zero,
}

/// Not a way to wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is neither discard nor zero")]
pub struct InvalidWipe;

impl fmt::Display for Wipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discard => "discard",
            Self::Zero => "zero",
        })
    }
}

impl FromStr for Wipe {
    type Err = InvalidWipe;

    fn from_str(text: &str) -> Result<Self, InvalidWipe> {
        match text {
            "discard" => Ok(Self::Discard),
            "zero" => Ok(Self::Zero),
            _ => Err(InvalidWipe),
        }
    }
}

/// A block device that is held to be wiped, and that nobody else can mount or wipe meanwhile.
pub trait Wipeable: Send {
    /// In bytes.
    fn size(&self) -> u64;

    /// Wipes a range of bytes, which begins and ends at whole sectors. Blocks for as long as the device needs.
    fn wipe(&mut self, how: Wipe, range: Range<u64>) -> io::Result<()>;

    /// Returns when what was wiped will stay so after a power failure.
    fn flush(&mut self) -> io::Result<()>;
}

/// Ways in which Linux wipes, see `blkdev_fallocate` in the kernel's `block/fops.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Unmaps, where the device promises that zeros are read afterwards.
    Unmap,
    /// Discards, without a promise. Kernels since 6.13 do not offer it any more.
    Discard,
    /// Zeros by a command of the device, or written by the kernel.
    ZeroRange,
    /// Zeros written by us.
    Write,
}

impl Way {
    fn first(how: Wipe) -> Self {
        match how {
            Wipe::Discard => Self::Unmap,
            Wipe::Zero => Self::ZeroRange,
        }
    }

    /// What is tried when this one is not supported.
    fn next(self) -> Option<Self> {
        match self {
            Self::Unmap => Some(Self::Discard),
            Self::Discard => Some(Self::ZeroRange),
            Self::ZeroRange => Some(Self::Write),
            Self::Write => None,
        }
    }
}

/// A block device, or in tests a file.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    size: u64,
    /// The best way that was not found to be unsupported.
    way: Option<(Wipe, Way)>,
    zeros: Vec<u8>,
}

impl Held {
    /// Opens a device, unless somebody else has it for himself: it is mounted, in use by another device, or held like this.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // On a block device O_EXCL without O_CREAT means this, see open(2).
        let flags = OFlags::WRONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()).or_else(|error| {
            if error == Errno::INVAL { rustix::fs::open(path, flags, Mode::empty()) } else { Err(error) }
        })?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0))?;
        Ok(Self { file: file.into(), size, way: None, zeros: Vec::new() })
    }

    pub(crate) fn device(&self) -> io::Result<Device> {
        let device = self.file.metadata()?.rdev();
        Ok(Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) })
    }

    fn by(&mut self, way: Way, offset: u64, length: u64) -> rustix::io::Result<()> {
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match way {
            Way::Unmap => keep | FallocateFlags::PUNCH_HOLE,
            Way::Discard => keep | FallocateFlags::PUNCH_HOLE | FallocateFlags::NO_HIDE_STALE,
            Way::ZeroRange => keep | FallocateFlags::ZERO_RANGE,
            Way::Write => return self.write_zeros(offset, length),
        };
        loop {
            match fallocate(&self.file, flags, offset, length) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    fn write_zeros(&mut self, mut offset: u64, mut length: u64) -> rustix::io::Result<()> {
        // Direct I/O wants aligned memory as well.
        self.zeros.resize(ZEROS + BLOCK, 0);
        let aligned = self.zeros.as_ptr().align_offset(BLOCK);
        while length > 0 {
            let piece = usize::try_from(length).map_or(ZEROS, |length| length.min(ZEROS));
            let zeros = self.zeros.get(aligned..aligned.saturating_add(piece)).ok_or(Errno::INVAL)?;
            match rustix::io::pwrite(&self.file, zeros, offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    let count = u64::try_from(count).map_err(|_| Errno::OVERFLOW)?;
                    offset += count;
                    length = length.saturating_sub(count);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Wipeable for Held {
    fn size(&self) -> u64 {
        self.size
    }

    fn wipe(&mut self, how: Wipe, range: Range<u64>) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        let mut way = self.way.filter(|(of, _)| *of == how).map_or_else(|| Way::first(how), |(_, way)| way);
        loop {
            match (self.by(way, range.start, length), way.next()) {
                (Err(Errno::OPNOTSUPP | Errno::NOSYS), Some(next)) => {
                    tracing::info!(?way, ?next, "the device does not offer this way of wiping; trying the next");
                    way = next;
                }
                (done, _) => {
                    self.way = Some((how, way));
                    return Ok(done?);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rstest::rstest;
    use tempfile::NamedTempFile;

    use super::*;

    const SIZE: usize = 3 << 20;

    fn disk() -> NamedTempFile {
        let disk = NamedTempFile::new().unwrap();
        fs::write(disk.path(), vec![0xa5; SIZE]).unwrap();
        disk
    }

    #[rstest]
    fn what_is_wiped_reads_as_zeros_and_the_rest_stays(#[values(Wipe::Discard, Wipe::Zero)] how: Wipe) {
        let disk = disk();
        let mut held = Held::open(disk.path()).unwrap();
        assert_eq!(held.size(), 3 << 20);
        held.wipe(how, 4096..(2 << 20) + 4096).unwrap();
        held.flush().unwrap();
        let contents = fs::read(disk.path()).unwrap();
        assert_eq!(contents.len(), SIZE);
        let is_zero = |range: Range<usize>| contents[range].iter().all(|byte| *byte == 0);
        let is_kept = |range: Range<usize>| contents[range].iter().all(|byte| *byte == 0xa5);
        assert!(is_kept(0..4096) && is_zero(4096..(2 << 20) + 4096) && is_kept((2 << 20) + 4096..SIZE));
    }

    #[test]
    fn zeros_are_written_where_nothing_else_works() {
        let disk = disk();
        let mut held = Held::open(disk.path()).unwrap();
        held.way = Some((Wipe::Zero, Way::Write));
        // Not a multiple of what is written at once.
        held.wipe(Wipe::Zero, 0..(2 << 20) + 8192).unwrap();
        let contents = fs::read(disk.path()).unwrap();
        let end = contents.iter().position(|byte| *byte != 0).unwrap();
        assert_eq!((end, contents.len()), ((2 << 20) + 8192, SIZE));
    }

    #[test]
    fn a_way_of_discarding_is_followed_by_one_of_zeroing() {
        let ways: Vec<_> = std::iter::successors(Some(Way::first(Wipe::Discard)), |way| way.next()).collect();
        assert_eq!(ways, [Way::Unmap, Way::Discard, Way::ZeroRange, Way::Write]);
        assert_eq!(Way::first(Wipe::Zero), Way::ZeroRange);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert_eq!(Held::open(Path::new("/dev/no-such-disk")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
