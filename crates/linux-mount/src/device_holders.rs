//! Finds what keeps a device from being removed: mounts, also of single directories and in other mount namespaces,
//! devices that are made of it, loop devices, swap space, and processes that have it open.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::processes::{self, ProcessName, read_entries};
use super::{DeviceNumber, DeviceUse, MountError, device, mount_table};

/// Number of holders of each kind that are listed: a message is for people.
const MOST: usize = 5;

/// Finds what holds the device whose LV has this path. Unlike a search for its nodes it is made after LVM has refused
/// to remove the LV, and only explains that.
pub(crate) fn find_device_holders(number: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, MountError> {
    let sysfs = PathBuf::from(format!("/sys/dev/block/{}:{}", number.major, number.minor));
    let mut found: Vec<_> = read_names(&sysfs.join("holders")).into_iter().map(|name| stacked_device(&name)).collect();
    found.extend(find_loops(number));
    found.extend(find_swap(number));
    let mounts = mount_table::find_all_targets(Path::new("self"), number)?;
    if mounts.is_empty() {
        // Otherwise most of them are what others see of ours
        found.extend(find_mounts_elsewhere(number));
    }
    found.extend(mounts.into_iter().map(DeviceUse::Mounted));
    found.extend(find_openers(number));
    if found.is_empty() && device::is_claimed(lv)? {
        found = find_users(number);
        if found.is_empty() {
            found.push(DeviceUse::Frozen(lv.to_owned()));
        }
    }
    Ok(found)
}

/// Returns the use by a device that is made of others, given the kernel's name of it.
fn stacked_device(kernel_name: &str) -> DeviceUse {
    let directory = Path::new("/sys/block").join(kernel_name);
    let read = |file| std::fs::read_to_string(directory.join(file)).ok().map(|text| text.trim().to_owned());
    let path = format!("/dev/{kernel_name}");
    let Some(name) = read("dm/name") else {
        let command = match kernel_name {
            md if md.starts_with("md") => format!("mdadm --stop {path}"),
            bcache if bcache.starts_with("bcache") => format!("echo 1 >/sys/block/{bcache}/bcache/stop"),
            other => format!("the programs of {other}"),
        };
        return DeviceUse::Stacked { name: path, command };
    };
    let command = match read("dm/uuid").unwrap_or_default() {
        uuid if uuid.starts_with("CRYPT-") => format!("cryptsetup close {name}"),
        uuid if uuid.starts_with("LVM-") => format!("lvchange --activate n /dev/mapper/{name}"),
        uuid if uuid.starts_with("mpath-") => format!("multipath -f {name}"),
        _ => format!("dmsetup remove {name}"),
    };
    DeviceUse::Stacked { name: format!("/dev/mapper/{name}"), command }
}

/// Finds the loop devices whose file is the device.
fn find_loops(number: DeviceNumber) -> Vec<DeviceUse> {
    let loops = read_names(Path::new("/sys/block")).into_iter().filter(|name| name.starts_with("loop"));
    let of_device = loops.filter(|name| {
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        std::fs::read_to_string(file).is_ok_and(|file| is_device_node(Path::new(file.trim_end()), number))
    });
    of_device.map(|name| DeviceUse::Loop(format!("/dev/{name}"))).collect()
}

/// Finds the device in the list of swap space.
fn find_swap(number: DeviceNumber) -> Option<DeviceUse> {
    let swaps = std::fs::read_to_string("/proc/swaps").ok()?;
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let path = paths.find(|path| is_device_node(Path::new(path), number))?;
    Some(DeviceUse::Swap(path.into()))
}

/// Finds mounts of the device's filesystem in other mount namespaces.
fn find_mounts_elsewhere(number: DeviceNumber) -> Vec<DeviceUse> {
    let mounts = processes::list_other_namespaces().into_iter().filter_map(|pid| {
        // A process that has ended has no mounts
        let path = mount_table::find_all_targets(Path::new(&pid.to_string()), number).ok()?.into_iter().next()?;
        Some(DeviceUse::MountedFor { process: ProcessName::read(pid), path })
    });
    mounts.take(MOST).collect()
}

/// Finds processes that have the device open.
fn find_openers(number: DeviceNumber) -> Vec<DeviceUse> {
    let has_it_open = |pid: &u32| {
        let mut files = read_entries(&processes::directory_of(*pid).join("fd")).map(|entry| entry.path());
        files.any(|file| {
            // Other files may lie on a disk, or on a server, that does not answer
            let is_device_path = std::fs::read_link(&file).is_ok_and(|path| path.starts_with("/dev"));
            is_device_path && is_device_node(&file, number)
        })
    };
    let openers = processes::list().filter(has_it_open);
    openers.take(MOST).map(|pid| DeviceUse::Open(ProcessName::read(pid))).collect()
}

/// Finds processes that keep the filesystem on the device although it is mounted nowhere. Not those of btrfs, whose
/// files have another device number.
fn find_users(number: DeviceNumber) -> Vec<DeviceUse> {
    // Without a question to a server that does not answer
    let is_on_device = |link: PathBuf| {
        rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
            .is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == (number.major, number.minor))
    };
    let users = processes::list().filter(|pid| processes::list_links(*pid).any(is_on_device));
    users.take(MOST).map(|pid| DeviceUse::Files(ProcessName::read(pid))).collect()
}

/// Returns whether a path leads to a node of the device.
fn is_device_node(path: &Path, number: DeviceNumber) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| {
        metadata.file_type().is_block_device() && DeviceNumber::from_rdev(metadata.rdev()) == number
    })
}

/// Lists the names in a directory, in their order; none if it does not exist.
fn read_names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = read_entries(directory).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
