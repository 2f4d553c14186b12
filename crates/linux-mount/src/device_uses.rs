//! Finds where the node of a block device is mounted, bound, or in a container. A node that is not open does not keep
//! the device from being removed, and leads to foreign data as soon as the kernel gives the device's number to another
//! one.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::processes::{self, ProcessName, read_entries};
use super::{DeviceNumber, DeviceUse, MountError, mount_table};

const DEVICES: &str = "dev";
/// Depth of directories that is searched below the /dev of a container.
const MAX_DEPTH: usize = 4;
/// Number of files that is searched below the /dev of a container. The kernel gives a fresh one about twenty.
const MAX_ENTRIES: usize = 10_000;

/// Finds all uses of the device whose LV has this path. In mount namespaces other than ours only /dev is searched,
/// and only those of processes that /proc shows.
pub(crate) fn find_device_uses(device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, MountError> {
    // Its own node is no use of it. LVM and the kernel take that away together with the device
    let own = [std::fs::canonicalize(lv).ok(), Some(PathBuf::from("/dev"))];
    let own: Vec<u64> =
        own.into_iter().flatten().filter_map(|path| Some(std::fs::metadata(path).ok()?.dev())).collect();
    let mut uses: Vec<_> = mount_table::find_targets(device)?.into_iter().map(DeviceUse::Mounted).collect();
    let ours = read_bounding_set(Path::new("/proc/self"));
    uses.extend(processes::list_other_namespaces().into_iter().filter_map(|pid| {
        let process = processes::directory_of(pid);
        let capabilities = read_bounding_set(&process);
        let is_privileged = ours.is_some_and(|ours| capabilities.is_some_and(|theirs| theirs & ours == ours));
        let path = find_device_node(&process.join("root"), &Search { device, own: &own, is_privileged })?;
        Some(DeviceUse::Container { process: ProcessName::read(pid), path: Path::new("/").join(path) })
    }));
    Ok(uses)
}

/// Reads the bounding set of the capabilities of a process.
fn read_bounding_set(process: &Path) -> Option<u64> {
    procfs::process::Process::new_with_root(process.to_owned()).ok()?.status().ok()?.capbnd
}

/// The device that is searched for in a container.
struct Search<'a> {
    device: DeviceNumber,
    /// Filesystems in which LVM's own node of the device lies, by device number.
    own: &'a [u64],
    /// True when the container has all capabilities that we have.
    is_privileged: bool,
}

impl Search<'_> {
    /// Returns whether a node is one that the container runtime gives to a privileged container, which gets a node of
    /// every device of the machine at the path that it has there. That is no use of one of them, and such a container
    /// can make nodes of any device.
    fn is_default_of_privileged(&self, path: &Path) -> bool {
        let on_the_machine = std::fs::symlink_metadata(Path::new("/").join(path));
        self.is_privileged
            && on_the_machine.is_ok_and(|node| {
                node.file_type().is_block_device() && DeviceNumber::from_rdev(node.rdev()) == self.device
            })
    }
}

/// Finds a node of the device below the /dev of a container, and in no other filesystem that is mounted there.
fn find_device_node(root: &Path, search: &Search<'_>) -> Option<PathBuf> {
    let devices = root.join(DEVICES);
    let filesystem = std::fs::metadata(&devices).ok()?.dev();
    let mut directories = vec![(devices, 0)];
    let mut left = MAX_ENTRIES;
    while let Some((directory, depth)) = directories.pop() {
        for entry in read_entries(&directory) {
            left = left.checked_sub(1)?;
            let path = entry.path();
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() && depth < MAX_DEPTH && metadata.dev() == filesystem {
                directories.push((path, depth + 1));
            } else if metadata.file_type().is_block_device()
                && DeviceNumber::from_rdev(metadata.rdev()) == search.device
                // A container that has the /dev of the machine has no separate node, unless one is bound there
                && (metadata.dev() != filesystem || !search.own.contains(&filesystem))
                && let Ok(path) = path.strip_prefix(root)
                && !search.is_default_of_privileged(path)
            {
                return Some(path.to_owned());
            }
        }
    }
    None
}
