//! A disk of this machine that is open for reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::{Contents, Number, OpenDisk, contents};

/// A claim to a disk: no other program can mount or format it until this is dropped.
#[derive(Debug)]
pub struct Claim {
    _file: Option<File>,
}

impl Claim {
    /// Returns a claim to nothing, for machines that are none.
    pub fn of_nothing() -> Self {
        Self { _file: None }
    }
}

#[derive(Debug)]
pub(crate) struct OpenDevice {
    path: PathBuf,
    number: Number,
    file: File,
}

impl OpenDevice {
    /// Opens the block device of this number.
    pub(crate) fn open(path: &Path, number: Number) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // Past the page cache: only the answer of the disk counts
        let file = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()).or_else(|error| {
            if error == Errno::INVAL { rustix::fs::open(path, flags, Mode::empty()) } else { Err(error) }
        })?;
        let file = File::from(file);
        check_number(&file, number)?;
        Ok(Self { path: path.to_owned(), number, file })
    }
}

impl OpenDisk for OpenDevice {
    fn touch(&self) -> io::Result<()> {
        contents::read_first(|place, buffer| fill(&self.file, place, buffer))
    }

    fn contents(&self) -> io::Result<Contents> {
        let size = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
        contents::examine(size, |place, buffer| fill(&self.file, place, buffer))
    }

    fn claim(&self) -> io::Result<Claim> {
        // On a block device O_EXCL without O_CREAT means this, see open(2)
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        check_number(&file, self.number)?;
        Ok(Claim { _file: Some(file) })
    }
}

fn check_number(file: &File, number: Number) -> io::Result<()> {
    let metadata = file.metadata()?;
    let device = metadata.rdev();
    let found = Number { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
    if metadata.file_type().is_block_device() && found == number {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the path now points to another device"))
}

/// Fills the buffer. That the disk ends before is an error: it was pulled, or has become smaller.
fn fill(file: &File, mut place: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, place) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                place += u64::try_from(count).map_err(io::Error::other)?;
                buffer = buffer.get_mut(count..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_block_device_of_this_number_is_not_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = OpenDevice::open(file.path(), Number { major: 0, minor: 0 }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        OpenDevice::open(Path::new("/dev/no-such-disk"), Number { major: 8, minor: 0 }).unwrap_err();
    }
}
