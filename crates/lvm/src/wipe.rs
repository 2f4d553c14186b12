//! Wiping what is on a block device, piece by piece.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::Device;

/// Direct I/O is done in such pieces at such places: the largest sector size that is in use.
const BLOCK: usize = 4096;
/// Bytes that are written at once.
const ZEROS: usize = 1 << 20;

/// Method by which volumes of a class are wiped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wipe {
    /// Discards all blocks of the device. Writes zeros where the device does not support that.
    Discard,
    /// The device reads as zeros afterwards.
    Zero,
}

impl Wipe {
    /// Returns the method of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Discard, Self::Zero].into_iter().find(|wipe| wipe.to_string() == name)
    }
}

impl fmt::Display for Wipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discard => "discard",
            Self::Zero => "zero",
        })
    }
}

/// A block device that is open exclusively to be wiped: no other program can mount or wipe it meanwhile.
pub trait Wipeable: Send {
    /// Returns its size in bytes.
    fn size(&self) -> u64;

    /// Wipes a range of bytes, which begins and ends at whole sectors. Blocks for as long as the device needs.
    fn wipe(&mut self, how: Wipe, range: Range<u64>) -> io::Result<()>;

    /// Returns when what was wiped will stay so after a power failure.
    fn flush(&mut self) -> io::Result<()>;
}

/// Methods by which Linux wipes, see `blkdev_fallocate` in the kernel's `block/fops.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Unmaps, where the device guarantees that zeros are read afterwards.
    Unmap,
    /// Discards, without that guarantee. Kernels since 6.13 do not offer it any more.
    Discard,
    /// Zeros by a command of the device, or written by the kernel.
    ZeroRange,
    /// Zeros written by us.
    Write,
}

impl Method {
    fn preferred(how: Wipe) -> Self {
        match how {
            Wipe::Discard => Self::Unmap,
            Wipe::Zero => Self::ZeroRange,
        }
    }

    /// Returns the method to try when this one is not supported.
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
pub(crate) struct ExclusiveDevice {
    file: File,
    size: u64,
    /// The best method that was not found to be unsupported.
    method: Option<(Wipe, Method)>,
    zeros: Vec<u8>,
}

impl ExclusiveDevice {
    /// Opens a device, exclusively. Fails while it is mounted, in use by another device, or open exclusively already.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // On a block device O_EXCL without O_CREAT means this, see open(2).
        let flags = OFlags::WRONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()).or_else(|error| {
            if error == Errno::INVAL { rustix::fs::open(path, flags, Mode::empty()) } else { Err(error) }
        })?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0))?;
        Ok(Self { file: file.into(), size, method: None, zeros: Vec::new() })
    }

    pub(crate) fn device(&self) -> io::Result<Device> {
        let device = self.file.metadata()?.rdev();
        Ok(Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) })
    }

    fn wipe_with(&mut self, method: Method, offset: u64, length: u64) -> rustix::io::Result<()> {
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match method {
            Method::Unmap => keep | FallocateFlags::PUNCH_HOLE,
            Method::Discard => keep | FallocateFlags::PUNCH_HOLE | FallocateFlags::NO_HIDE_STALE,
            Method::ZeroRange => keep | FallocateFlags::ZERO_RANGE,
            Method::Write => return self.write_zeros(offset, length),
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

impl Wipeable for ExclusiveDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn wipe(&mut self, how: Wipe, range: Range<u64>) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        let mut method =
            self.method.filter(|(of, _)| *of == how).map_or_else(|| Method::preferred(how), |(_, method)| method);
        loop {
            match (self.wipe_with(method, range.start, length), method.next()) {
                (Err(Errno::OPNOTSUPP | Errno::NOSYS), Some(next)) => {
                    let message = "the device does not support this wipe method; trying the next one";
                    tracing::info!(way = ?method, ?next, "{message}");
                    method = next;
                }
                (done, _) => {
                    self.method = Some((how, method));
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
        let mut held = ExclusiveDevice::open(disk.path()).unwrap();
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
        let mut held = ExclusiveDevice::open(disk.path()).unwrap();
        held.method = Some((Wipe::Zero, Method::Write));
        // Not a multiple of what is written at once.
        held.wipe(Wipe::Zero, 0..(2 << 20) + 8192).unwrap();
        let contents = fs::read(disk.path()).unwrap();
        let end = contents.iter().position(|byte| *byte != 0).unwrap();
        assert_eq!((end, contents.len()), ((2 << 20) + 8192, SIZE));
    }

    #[test]
    fn a_way_of_discarding_is_followed_by_one_of_zeroing() {
        let ways: Vec<_> =
            std::iter::successors(Some(Method::preferred(Wipe::Discard)), |method| method.next()).collect();
        assert_eq!(ways, [Method::Unmap, Method::Discard, Method::ZeroRange, Method::Write]);
        assert_eq!(Method::preferred(Wipe::Zero), Method::ZeroRange);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert_eq!(ExclusiveDevice::open(Path::new("/dev/no-such-disk")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
