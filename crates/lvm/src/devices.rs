//! The port to block devices that needs no LVM process: metadata version, device-mapper status, wiping, locking; and
//! its implementation for this machine.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block_device::Number;
use device_mapper::{Control, RaidStatus, ThinPoolStatus};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::metadata::{self, ByteRange, HEADER, LABEL_SPACE, Version};
use crate::volume::is_device_of_move;
use crate::wipe::ExclusiveDevice;
use crate::{Device, GroupLock, LogicalVolume, PhysicalVolume, VgName, VolumeGroup, Wipeable};

/// Direct I/O is done in such pieces at such places: the largest sector size that is in use.
const BLOCK: usize = 4096;
/// Bytes that are read at once of what is read from beginning to end.
const PIECE: u64 = 1 << 20;

/// Status of the block device of a logical volume, by device-mapper.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStatus {
    /// Number of times that it is open.
    pub open_count: u32,
    /// Data and metadata of a thin pool that are used, in percent.
    pub fill: Option<(f64, f64)>,
    /// Sectors of 512 bytes of a thin volume that are mapped in its pool: ever written, or shared with its origin.
    pub mapped_sectors: Option<u64>,
    /// Condition that may change without LVM's metadata, as the kernel reports it: a pool that went read-only, a RAID
    /// that lost an image.
    pub condition: String,
}

/// Access to devices without LVM, which costs microseconds instead of a process. Every call may block for as long as
/// the device does.
pub trait Devices: Send + Sync + 'static {
    /// Returns the version of the metadata on a physical volume; `None` when there is none on it, or none that LVM
    /// uses. That it is no physical volume any more is an error.
    fn version(&self, pv: &PhysicalVolume) -> io::Result<Option<Version>>;

    /// Reads so many bytes of a physical volume, from this byte of its device on: an error if one of them cannot be
    /// read.
    fn read_through(&self, pv: &PhysicalVolume, start: u64, length: u64) -> io::Result<()>;

    /// Returns the status of a logical volume's block device; `None` when it is not active.
    fn status(&self, vg: &VolumeGroup, volume: &LogicalVolume) -> io::Result<Option<DeviceStatus>>;

    /// Lists all devices of device-mapper by name; see [`LogicalVolume::mapper_name`].
    fn mapped(&self) -> io::Result<HashMap<String, Device>>;

    /// Returns whether a move of extents of a group has failed to read or write a disk, which `pvmove` itself does not
    /// check. The kernel forgets it when the move ends.
    fn is_move_failing(&self, vg: &VgName) -> io::Result<bool>;

    /// Returns the names in device-mapper of the LVM volumes that a device file is or lies on, through whatever other
    /// devices. Fails with [`io::ErrorKind::NotFound`] when there is no such file.
    fn volumes_below(&self, path: &str) -> io::Result<Vec<String>>;

    /// Returns the kernel's list of partitions, which changes whenever a block device comes or goes.
    fn partitions(&self) -> io::Result<String>;

    /// Opens the block device of a logical volume exclusively, to wipe it. Fails with [`io::ErrorKind::ResourceBusy`]
    /// while it is mounted or open exclusively already, by whomever.
    fn hold(&self, vg: &VgName, volume: &LogicalVolume) -> io::Result<Box<dyn Wipeable>>;

    /// Acquires LVM's own lock of a volume group, a file in this directory, within `timeout`.
    fn lock_group(&self, directory: &Path, vg: &VgName, timeout: Duration) -> io::Result<GroupLock>;
}

/// The devices of this machine.
#[derive(Debug)]
pub struct SystemDevices {
    /// Directory with the machine's own `/dev` and `/proc`.
    root: PathBuf,
    /// Cache of the versions that were last read, by physical volume: the text is only read again when the header in
    /// front of it is another.
    versions: Mutex<HashMap<String, CachedVersion>>,
}

#[derive(Debug)]
struct CachedVersion {
    header: Vec<u8>,
    version: Option<Version>,
}

impl SystemDevices {
    /// Returns the devices below this directory: `/`, or `/proc/1/root` in a container that shares the machine's
    /// process table.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), versions: Mutex::default() }
    }

    /// Returns the directory with the machine's own `/dev` and `/proc`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn control(&self) -> io::Result<Control> {
        Control::open(&self.path("/dev/mapper/control"))
    }

    fn open_disk(&self, pv: &PhysicalVolume) -> io::Result<Disk> {
        let device = pv.device.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the device is missing"))?;
        let disk = Disk::open(&self.path(&pv.path))?;
        if disk.numbers()? != (device.major, device.minor) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the path points to another device"));
        }
        Ok(disk)
    }

    /// Reads the version of the metadata of this physical volume with `read`. A disk may never answer: nothing is
    /// locked meanwhile.
    fn read_version(&self, pv: &str, read: impl Fn(ByteRange) -> io::Result<Vec<u8>>) -> io::Result<Option<Version>> {
        // Label and header are usually both in here: one read.
        let start = read(ByteRange { offset: 0, size: 2 * block() })?;
        let label = start.get(..LABEL_SPACE).unwrap_or(&start);
        // A disk that was pulled from under its device reads as empty.
        let no_label = || io::Error::new(io::ErrorKind::NotFound, "the device has no LVM label");
        let areas = metadata::areas(label).ok_or_else(no_label)?;
        // After a disk has gone another one of the same group may get its numbers, with the same metadata.
        if !metadata::is_label_of(label, pv) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the device contains another physical volume"));
        }
        for area in areas {
            let header = ByteRange { offset: area.offset, size: u64::try_from(HEADER).unwrap_or(0) };
            let header = match part_of(&start, header) {
                Some(header) => header,
                None => read(header)?,
            };
            let Some(head) = metadata::text_head(area, &header) else { continue };
            if let Some(cached) = self.versions.lock().get(pv).filter(|cached| cached.header == header) {
                return Ok(cached.version.clone());
            }
            let mut text = Vec::new();
            for piece in head {
                text.extend(read(piece)?);
            }
            let version = metadata::version(&text);
            let cached = CachedVersion { header, version: version.clone() };
            self.versions.lock().insert(pv.to_owned(), cached);
            return Ok(version);
        }
        Ok(None)
    }
}

/// Returns the bytes of the range, if they are in what was read of the start of a device.
fn part_of(start: &[u8], range: ByteRange) -> Option<Vec<u8>> {
    let (offset, size) = usize::try_from(range.offset).ok().zip(usize::try_from(range.size).ok())?;
    Some(start.get(offset..offset.checked_add(size)?)?.to_vec())
}

impl Devices for SystemDevices {
    fn version(&self, pv: &PhysicalVolume) -> io::Result<Option<Version>> {
        let disk = self.open_disk(pv)?;
        self.read_version(&pv.uuid, |range| disk.read(range))
    }

    fn read_through(&self, pv: &PhysicalVolume, start: u64, length: u64) -> io::Result<()> {
        self.open_disk(pv)?.read_through(start, length)
    }

    fn status(&self, vg: &VolumeGroup, volume: &LogicalVolume) -> io::Result<Option<DeviceStatus>> {
        let plain = |uuid: &str| uuid.replace('-', "");
        let uuid = format!("LVM-{}{}", plain(&vg.uuid), plain(&volume.uuid));
        let is_pool = volume.attr.is_thin_pool();
        // The pool itself is a layer below the volume, which exists for users of the whole pool.
        let uuid = if is_pool { format!("{uuid}-tpool") } else { uuid };
        let Some(info) = self.control()?.status(&uuid)? else {
            return Ok(None);
        };
        let mut status =
            DeviceStatus { open_count: info.open_count, fill: None, mapped_sectors: None, condition: String::new() };
        for target in info.targets {
            match target.target_type.as_str() {
                "thin-pool" => {
                    let pool = ThinPoolStatus::parse(&target.status).map_err(io::Error::other)?;
                    status.fill = pool.data.zip(pool.metadata).map(|(data, meta)| (data.percent(), meta.percent()));
                    status.condition = pool.condition;
                }
                "thin" => status.mapped_sectors = device_mapper::thin_mapped_sectors(&target.status),
                "raid" => {
                    let raid = RaidStatus::parse(&target.status).map_err(io::Error::other)?;
                    status.condition = format!("{} {}", raid.health, raid.mismatches);
                }
                _ => {}
            }
        }
        Ok(Some(status))
    }

    fn mapped(&self) -> io::Result<HashMap<String, Device>> {
        let devices = self.control()?.devices()?;
        Ok(devices.into_iter().map(|(name, (major, minor))| (name, Device { major, minor })).collect())
    }

    fn is_move_failing(&self, vg: &VgName) -> io::Result<bool> {
        let control = self.control()?;
        for name in control.devices()?.into_keys().filter(|name| is_device_of_move(vg, name)) {
            let targets = control.status_by_name(&name)?.map(|info| info.targets).unwrap_or_default();
            for target in targets.iter().filter(|target| target.target_type == "mirror") {
                if device_mapper::mirror_has_failed(&target.status).map_err(io::Error::other)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn volumes_below(&self, path: &str) -> io::Result<Vec<String>> {
        let number = std::fs::metadata(self.path(path))?.rdev();
        let number = Number { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        block_device::lvm_volumes_below(&self.root, number)
    }

    fn partitions(&self) -> io::Result<String> {
        std::fs::read_to_string(self.path("/proc/partitions"))
    }

    fn hold(&self, vg: &VgName, volume: &LogicalVolume) -> io::Result<Box<dyn Wipeable>> {
        let name = volume.mapper_name(vg);
        let device = self.mapped()?.remove(&name);
        let device = device.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the volume has no device"))?;
        let held = ExclusiveDevice::open(&self.path(&format!("/dev/mapper/{name}")))?;
        // A wrong device would contain the data of another volume.
        if held.device()? != device {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the path points to another device"));
        }
        Ok(Box::new(held))
    }

    fn lock_group(&self, directory: &Path, vg: &VgName, timeout: Duration) -> io::Result<GroupLock> {
        GroupLock::acquire(&self.root.join(directory.strip_prefix("/").unwrap_or(directory)), vg, timeout)
    }
}

fn block() -> u64 {
    u64::try_from(BLOCK).unwrap_or(u64::MAX)
}

/// A block device, or in tests a file.
struct Disk {
    file: File,
}

impl Disk {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // Past the page cache, which another machine on a shared disk does not know about.
        let file = rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty())
            .or_else(|_| rustix::fs::open(path, flags, Mode::empty()))?;
        Ok(Self { file: file.into() })
    }

    fn numbers(&self) -> io::Result<(u32, u32)> {
        let device = self.file.metadata()?.rdev();
        Ok((rustix::fs::major(device), rustix::fs::minor(device)))
    }

    /// Reads so many bytes, and forgets them.
    fn read_through(&self, start: u64, length: u64) -> io::Result<()> {
        let end = start.saturating_add(length);
        let mut offset = start;
        while offset < end {
            let size = PIECE.min(end - offset);
            let read = self.read(ByteRange { offset, size })?;
            if u64::try_from(read.len()).ok() != Some(size) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset += size;
        }
        Ok(())
    }

    /// Reads the bytes of the range; fewer at the end of the device.
    fn read(&self, range: ByteRange) -> io::Result<Vec<u8>> {
        let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
        let before = range.offset % block();
        let whole = before.checked_add(range.size).and_then(|size| size.checked_next_multiple_of(block()));
        let whole = whole.and_then(|size| usize::try_from(size).ok()).ok_or_else(too_large)?;
        // Direct I/O wants aligned memory as well.
        let mut buffer = vec![0; whole.checked_add(BLOCK).ok_or_else(too_large)?];
        let aligned = buffer.as_ptr().align_offset(BLOCK);
        let aligned_bytes = buffer.get_mut(aligned..aligned.saturating_add(whole)).ok_or_else(too_large)?;
        let mut read = 0;
        while let Some(rest) = aligned_bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let place = range.offset - before + u64::try_from(read).map_err(io::Error::other)?;
            match rustix::io::pread(&self.file, rest, place) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let from = usize::try_from(before).map_err(io::Error::other)?;
        let size = usize::try_from(range.size).map_err(io::Error::other)?;
        let end = from.saturating_add(size).min(read);
        Ok(aligned_bytes.get(from..end).unwrap_or_default().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn any_part_of_a_disk_is_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let contents: Vec<u8> = (0..20_000u32).map(|place| u8::try_from(place % 251).unwrap()).collect();
        file.write_all(&contents).unwrap();
        let disk = Disk::open(file.path()).unwrap();
        for (offset, size) in [(0, 512), (4095, 2), (5000, 9000), (19_990, 100), (30_000, 1)] {
            let start = contents.len().min(offset);
            let end = contents.len().min(offset + size);
            let range = ByteRange { offset: u64::try_from(offset).unwrap(), size: u64::try_from(size).unwrap() };
            assert_eq!(disk.read(range).unwrap(), contents[start..end], "{offset} {size}");
        }
    }

    #[test]
    fn what_is_not_there_to_the_last_byte_cannot_be_read_through() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; 3 << 20]).unwrap();
        let disk = Disk::open(file.path()).unwrap();
        disk.read_through(4096, (3 << 20) - 4096).unwrap();
        let error = disk.read_through(1 << 20, (2 << 20) + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// UUIDs of physical volumes.
    const UUIDS: [&str; 2] = ["aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa", "bbbbbb-bbbb-bbbb-bbbb-bbbb-bbbb-bbbbbb"];

    /// Returns the start of a physical volume whose metadata begins at byte 8192: count and identity say which.
    fn physical_volume(range: ByteRange, pv: &str, vg: &str) -> Vec<u8> {
        let mut disk = vec![0; 16384];
        let mut put = |place: usize, bytes: &[u8]| disk[place..place + bytes.len()].copy_from_slice(bytes);
        put(512, b"LABELONE");
        put(512 + 20, &32u32.to_le_bytes());
        put(512 + 24, b"LVM2 001");
        put(512 + 32, pv.replace('-', "").as_bytes());
        put(512 + 72, &0u64.to_le_bytes());
        put(512 + 88, &4096u64.to_le_bytes());
        put(512 + 96, &12288u64.to_le_bytes());
        put(4096 + 4, b" LVM2 x[5A%r0N*>");
        put(4096 + 40, &4096u64.to_le_bytes());
        put(4096 + 48, &100u64.to_le_bytes());
        put(8192, format!("vg {{\nid = \"{vg}\"\nseqno = 7\n").as_bytes());
        let from = usize::try_from(range.offset).unwrap();
        let end = disk.len().min(from + usize::try_from(range.size).unwrap());
        disk[from..end].to_vec()
    }

    #[test]
    fn hung_metadata_read_of_one_disk_blocks_no_other_disk() {
        let devices = SystemDevices::new("/");
        let (hang, hangs) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| {
                let (hang, released) = (hang, released);
                devices.read_version(UUIDS[0], |range| {
                    if range.offset >= 8192 {
                        hang.send(()).unwrap();
                        let _ = released.recv();
                    }
                    Ok(physical_volume(range, UUIDS[0], "vg-bad"))
                })
            });
            hangs.recv().unwrap();
            let (done, is_done) = std::sync::mpsc::channel();
            let devices = &devices;
            let read = |range| Ok(physical_volume(range, UUIDS[1], "vg-good"));
            scope.spawn(move || done.send(devices.read_version(UUIDS[1], read)));
            let good = is_done.recv_timeout(Duration::from_secs(20));
            release.send(()).unwrap();
            assert_eq!(good.expect("it waits for the other disk").unwrap().unwrap().vg_uuid, "vg-good");
            assert_eq!(hanging.join().unwrap().unwrap().unwrap().seqno, 7);
        });
    }

    #[test]
    fn read_version_refuses_a_device_with_another_pv_uuid() {
        let devices = SystemDevices::new("/");
        let read = |range| Ok(physical_volume(range, UUIDS[1], "vg"));
        assert_eq!(devices.read_version(UUIDS[1], read).unwrap().unwrap().seqno, 7);
        assert_eq!(devices.read_version(UUIDS[0], read).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_missing_disk_is_an_error() {
        let pv = PhysicalVolume {
            path: "/dev/no-such-disk".to_owned(),
            uuid: "x".to_owned(),
            device: Some(Device { major: 1, minor: 1 }),
            size: 0,
            free: 0,
            free_areas: Vec::new(),
            allocatable: true,
            tags: Box::default(),
        };
        let devices = SystemDevices::new("/");
        let error = devices.version(&pv).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        let error = devices.version(&PhysicalVolume { device: None, ..pv }).unwrap_err();
        assert_eq!(error.to_string(), "the device is missing");
    }
}
