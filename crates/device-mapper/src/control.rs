//! `/dev/mapper/control`.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, opcode};

use crate::message::{self, HEADER, Info, MessageError};

/// `DM_TABLE_STATUS`: group 0xfd, number 12, and the size of the header that it reads and writes.
const TABLE_STATUS: Opcode = opcode::read_write::<[u8; HEADER]>(0xfd, 12);
/// `DM_LIST_DEVICES`.
const LIST_DEVICES: Opcode = opcode::read_write::<[u8; HEADER]>(0xfd, 2);
/// The status of a device of many targets is longer; that of any thin pool or RAID is not.
const ROOM: usize = 16 << 10;
/// The longest answer that is waited for.
const MOST_ROOM: usize = 4 << 20;

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The kernel refused.
    #[error("device-mapper does not answer")]
    Ioctl(#[from] Errno),
    /// The answer makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
}

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

    /// What the device with this UUID says about itself; `None` when there is no such device.
    pub fn status(&self, uuid: &str) -> Result<Option<Info>, StatusError> {
        let answer = self.ask(TABLE_STATUS, |room| message::question(uuid, room), message::answer);
        match answer {
            Err(StatusError::Ioctl(Errno::NXIO)) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Names and numbers (major, minor) of all devices.
    pub fn devices(&self) -> Result<HashMap<String, (u32, u32)>, StatusError> {
        self.ask(LIST_DEVICES, message::question_about_all, message::devices)
    }

    /// Asks, with more and more room for the answer.
    fn ask<T>(
        &self,
        opcode: Opcode,
        question: impl Fn(usize) -> Result<Vec<u8>, MessageError>,
        answer: impl Fn(&[u8]) -> Result<T, MessageError>,
    ) -> Result<T, StatusError> {
        let mut room = ROOM;
        loop {
            let mut message = question(room)?;
            self.call(opcode, &mut message)?;
            match answer(&message) {
                Err(MessageError::Full) if room < MOST_ROOM => room *= 4,
                answer => return Ok(answer?),
            }
        }
    }

    #[expect(unsafe_code, reason = "ioctl(2) is the only way to ask, and rustix has no wrapper for these")]
    fn call(&self, opcode: Opcode, message: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: `message` is as long as its `data_size` field says (`message::question`), and the kernel reads and
        // writes no more than that. It keeps no pointer to it after the call.
        unsafe { ioctl::ioctl(&self.file, Call { opcode, message }) }
    }
}

struct Call<'a> {
    opcode: Opcode,
    message: &'a mut [u8],
}

// SAFETY: both opcodes take a pointer to a `struct dm_ioctl` with its data behind it, which is what they get.
#[expect(unsafe_code, reason = "see Control::call")]
unsafe impl Ioctl for Call<'_> {
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
