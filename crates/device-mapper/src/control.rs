//! The control device `/dev/mapper/control` and its ioctls.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};

use crate::message::{self, HEADER, Info, MessageError, Subject};

/// `DM_TABLE_STATUS`: group 0xfd, number 12, and the size of the header that it reads and writes.
const TABLE_STATUS: Opcode = opcode::read_write::<[u8; HEADER]>(0xfd, 12);
/// `DM_LIST_DEVICES`.
const LIST_DEVICES: Opcode = opcode::read_write::<[u8; HEADER]>(0xfd, 2);
/// Bytes for the first answer: enough for the status of any thin pool or RAID, not of a device of many targets.
const INITIAL_BUFFER: usize = 16 << 10;
/// Most bytes of an answer.
const MAX_BUFFER: usize = 4 << 20;

/// Device-mapper's control device, open.
#[derive(Debug)]
pub struct Control {
    file: File,
}

impl Control {
    /// Opens the control device, usually `/dev/mapper/control`. Asking needs `CAP_SYS_ADMIN`.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).write(true).open(path)? })
    }

    /// Returns the status of the device with this UUID; `None` when there is no such device.
    pub fn status(&self, uuid: &str) -> io::Result<Option<Info>> {
        self.status_of(Subject::Uuid(uuid))
    }

    /// Returns the status of the device with this name; `None` when there is no such device.
    pub fn status_by_name(&self, name: &str) -> io::Result<Option<Info>> {
        self.status_of(Subject::Name(name))
    }

    fn status_of(&self, subject: Subject<'_>) -> io::Result<Option<Info>> {
        match self.request(TABLE_STATUS, subject, message::parse_status) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Lists names and numbers (major, minor) of all devices.
    pub fn devices(&self) -> io::Result<HashMap<String, (u32, u32)>> {
        self.request(LIST_DEVICES, Subject::All, message::parse_device_list)
    }

    /// Makes a request, with more and more bytes for the answer.
    fn request<T>(
        &self,
        opcode: Opcode,
        subject: Subject<'_>,
        decode: impl Fn(&[u8]) -> Result<T, MessageError>,
    ) -> io::Result<T> {
        let mut size = INITIAL_BUFFER;
        loop {
            let mut message = message::request(subject, size)?;
            self.call(opcode, &mut message)?;
            match decode(&message) {
                Err(MessageError::Full) if size < MAX_BUFFER => size *= 4,
                answer => return Ok(answer?),
            }
        }
    }

    #[expect(unsafe_code, reason = "ioctl(2) is the only way to ask, and rustix has no wrapper for these")]
    fn call(&self, opcode: Opcode, message: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: `message` is as long as its `data_size` field (`message::request`), and the kernel reads and writes
        // no more than that. It keeps no pointer to it after the call.
        unsafe { ioctl::ioctl(&self.file, IoctlCall { opcode, message }) }
    }
}

struct IoctlCall<'a> {
    opcode: Opcode,
    message: &'a mut [u8],
}

// SAFETY: both opcodes take a pointer to a `struct dm_ioctl` with its data behind it, which is what they get.
#[expect(unsafe_code, reason = "see Control::call")]
unsafe impl Ioctl for IoctlCall<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        self.message.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut rustix::ffi::c_void) -> Result<(), Errno> {
        Ok(())
    }
}
