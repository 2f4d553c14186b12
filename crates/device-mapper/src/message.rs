//! The messages of device-mapper's ioctls, as bytes. Numbers are in the byte order of the machine.

use std::collections::HashMap;
use std::io;

/// `sizeof(struct dm_ioctl)`: the header before the targets.
pub(crate) const HEADER: usize = 312;
/// `sizeof(struct dm_target_spec)`: the header before the parameters of a target.
const TARGET: usize = 40;
/// The interface is `4.x.y`; the kernel refuses another first number only.
const VERSION: u32 = 4;
/// `DM_STATUS_TABLE_FLAG` is absent: the status is requested, not the table. `DM_NOFLUSH_FLAG`: a read of the status
/// must not make a thin pool commit its metadata.
const NOFLUSH: u32 = 1 << 11;
/// `DM_BUFFER_FULL_FLAG`: there was more than fits.
const BUFFER_FULL: u32 = 1 << 8;

// Offsets of fields in `struct dm_ioctl`.
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const TARGET_COUNT: usize = 20;
const OPEN_COUNT: usize = 24;
const FLAGS: usize = 28;
const DEVICE_NAME: usize = 48;
/// `DM_NAME_LEN` with the zero at the end.
const DEVICE_NAME_LEN: usize = 128;
const UUID: usize = 176;
/// `DM_UUID_LEN` with the zero at the end.
const UUID_LEN: usize = 129;

// Offsets of fields in `struct dm_target_spec`.
const NEXT: usize = 20;
const KIND: usize = 24;

// Offsets of fields in `struct dm_name_list`.
const ENTRY_NEXT: usize = 8;
const NAME: usize = 12;

/// An answer that makes no sense, or a question that cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A name or UUID that is longer than device-mapper allows.
    #[error("a device-mapper UUID has at most 128 bytes, a name 127, and neither has a zero byte")]
    Key,
    /// The answer is cut off.
    #[error("the kernel's answer is cut off")]
    Short,
    /// The answer did not fit.
    #[error("the kernel's answer does not fit")]
    Full,
}

impl From<MessageError> for io::Error {
    fn from(error: MessageError) -> Self {
        Self::other(error)
    }
}

/// Status of a device and of its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Number of times that it is open: mounted, used by another device, or open in a process.
    pub open_count: u32,
    /// The targets of its table.
    pub targets: Vec<Target>,
}

/// A target of a device's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its target type, for example `thin-pool`.
    pub target_type: String,
    /// Its status line; [`ThinPoolStatus`](crate::ThinPoolStatus) reads that of a thin pool.
    pub status: String,
}

/// The devices of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// The device with this UUID.
    Uuid(&'a str),
    /// The device with this name.
    Name(&'a str),
    /// All devices.
    All,
}

/// Returns a request with `size` bytes for the answer.
pub(crate) fn request(subject: Subject<'_>, size: usize) -> Result<Vec<u8>, MessageError> {
    let (place, limit, key) = match subject {
        Subject::Uuid(uuid) => (UUID, UUID_LEN, uuid),
        Subject::Name(name) => (DEVICE_NAME, DEVICE_NAME_LEN, name),
        Subject::All => (UUID, UUID_LEN, ""),
    };
    if key.len() >= limit || key.bytes().any(|byte| byte == 0) {
        return Err(MessageError::Key);
    }
    let mut message = vec![0; size.max(HEADER)];
    let length = u32::try_from(message.len()).map_err(|_| MessageError::Full)?;
    let header = u32::try_from(HEADER).map_err(|_| MessageError::Full)?;
    for (field, number) in [(0, VERSION), (DATA_SIZE, length), (DATA_START, header), (FLAGS, NOFLUSH)] {
        put(&mut message, field, &number.to_ne_bytes());
    }
    put(&mut message, place, key.as_bytes());
    Ok(message)
}

/// Parses names and numbers (major, minor) of all devices from the kernel's answer, which is in the same bytes.
pub(crate) fn parse_device_list(message: &[u8]) -> Result<HashMap<String, (u32, u32)>, MessageError> {
    let mut devices = HashMap::new();
    let mut entry = data(message)?;
    // The only entry of an empty list has no device.
    while let Some(number) = read_u64(entry, 0).filter(|number| *number != 0) {
        let name = entry.get(NAME..).ok_or(MessageError::Short)?;
        devices.insert(text(name), decode_device_number(number));
        match read_size(entry, ENTRY_NEXT)? {
            0 => break,
            next => entry = entry.get(next..).ok_or(MessageError::Short)?,
        }
    }
    Ok(devices)
}

/// Decodes a device number as `new_decode_dev` does: the low eight bits of the minor number, the major number, the rest
/// of the minor number.
fn decode_device_number(number: u64) -> (u32, u32) {
    let part = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    (part((number >> 8) & 0xfff), part((number & 0xff) | ((number >> 12) & 0xfff_ff00)))
}

/// Returns the bytes behind the header of an answer.
fn data(message: &[u8]) -> Result<&[u8], MessageError> {
    if read_u32(message, FLAGS).ok_or(MessageError::Short)? & BUFFER_FULL != 0 {
        return Err(MessageError::Full);
    }
    message.get(read_size(message, DATA_START)?..).ok_or(MessageError::Short)
}

/// Parses the status of a device from the kernel's answer, which is in the same bytes.
pub(crate) fn parse_status(message: &[u8]) -> Result<Info, MessageError> {
    let number = |place| read_u32(message, place).ok_or(MessageError::Short);
    let data = data(message)?;
    let mut targets = Vec::new();
    let mut place = 0;
    for _ in 0..number(TARGET_COUNT)? {
        let target = data.get(place..).ok_or(MessageError::Short)?;
        let kind = target.get(KIND..TARGET).ok_or(MessageError::Short)?;
        let status = target.get(TARGET..).ok_or(MessageError::Short)?;
        targets.push(Target { target_type: text(kind), status: text(status) });
        // From the start of the first target, not of this one.
        place = read_size(target, NEXT)?;
    }
    Ok(Info { open_count: number(OPEN_COUNT)?, targets })
}

fn put(message: &mut [u8], place: usize, bytes: &[u8]) {
    if let Some(field) = message.get_mut(place..place + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

fn read_u32(message: &[u8], place: usize) -> Option<u32> {
    let bytes = message.get(place..place.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn read_size(message: &[u8], place: usize) -> Result<usize, MessageError> {
    read_u32(message, place).and_then(|size| usize::try_from(size).ok()).ok_or(MessageError::Short)
}

fn read_u64(message: &[u8], place: usize) -> Option<u64> {
    let bytes = message.get(place..place.checked_add(8)?)?;
    bytes.try_into().ok().map(u64::from_ne_bytes)
}

/// Returns the text up to the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(targets: &[(&str, &str)]) -> Vec<u8> {
        let mut message = request(Subject::Uuid("LVM-x"), 4096).unwrap();
        put(&mut message, TARGET_COUNT, &u32::try_from(targets.len()).unwrap().to_ne_bytes());
        put(&mut message, OPEN_COUNT, &2u32.to_ne_bytes());
        let mut place = 0;
        for (kind, status) in targets {
            let next = (place + TARGET + status.len() + 1).next_multiple_of(8);
            put(&mut message, HEADER + place + NEXT, &u32::try_from(next).unwrap().to_ne_bytes());
            put(&mut message, HEADER + place + KIND, kind.as_bytes());
            put(&mut message, HEADER + place + TARGET, status.as_bytes());
            place = next;
        }
        message
    }

    #[test]
    fn every_target_of_a_device_is_read() {
        let info = parse_status(&answered(&[("linear", ""), ("thin-pool", "1 2/3 4/5 - rw")])).unwrap();
        assert_eq!(info.open_count, 2);
        let targets: Vec<_> =
            info.targets.iter().map(|target| (target.target_type.as_str(), target.status.as_str())).collect();
        assert_eq!(targets, [("linear", ""), ("thin-pool", "1 2/3 4/5 - rw")]);
    }

    #[test]
    fn every_device_is_listed_with_its_numbers() {
        let mut message = request(Subject::All, 4096).unwrap();
        assert_eq!(parse_device_list(&message).unwrap(), HashMap::new());
        for (place, number, next, name) in
            [(0, 254 << 8 | 3, 40u32, "vg-a"), (40, (1 << 20) | (253 << 8) | 0x2a, 0, "vg-b")]
        {
            let number: u64 = number;
            put(&mut message, HEADER + place, &number.to_ne_bytes());
            put(&mut message, HEADER + place + ENTRY_NEXT, &next.to_ne_bytes());
            put(&mut message, HEADER + place + NAME, name.as_bytes());
        }
        let expected = [("vg-a".to_owned(), (254, 3)), ("vg-b".to_owned(), (253, 0x12a))];
        assert_eq!(parse_device_list(&message).unwrap(), HashMap::from(expected));
    }

    #[test]
    fn an_answer_that_did_not_fit_is_an_error() {
        let mut message = answered(&[("linear", "")]);
        put(&mut message, FLAGS, &BUFFER_FULL.to_ne_bytes());
        assert_eq!(parse_status(&message), Err(MessageError::Full));
    }

    #[test]
    fn an_answer_of_any_length_is_read_without_harm() {
        let message = answered(&[("linear", "a"), ("raid", "b")]);
        for end in 0..message.len() {
            drop((parse_status(&message[..end]), parse_device_list(&message[..end])));
        }
    }

    #[test]
    fn a_key_that_the_kernel_cannot_take_is_refused() {
        assert_eq!(request(Subject::Uuid(&"x".repeat(129)), 4096), Err(MessageError::Key));
        assert_eq!(request(Subject::Uuid("a\0b"), 4096), Err(MessageError::Key));
        assert!(request(Subject::Uuid(&"x".repeat(128)), 4096).is_ok());
        assert_eq!(request(Subject::Name(&"x".repeat(128)), 4096), Err(MessageError::Key));
        assert_eq!(request(Subject::Name("vg-a"), 4096).unwrap().get(48..53), Some(&b"vg-a\0"[..]));
    }
}
