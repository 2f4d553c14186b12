//! Where the node of a block device still is. A node that nobody has open does not keep the device from being removed, and leads to somebody else's
//! data as soon as the kernel gives the device's number to another one.

use std::collections::HashSet;
use std::fmt;
use std::fs::{DirEntry, ReadDir};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::device::device_number;
use super::{DeviceNumber, Error, table};

const PROCESSES: &str = "/proc";
const DEVICES: &str = "dev";
/// How deep below its /dev a container is searched.
const DEPTH: usize = 4;
/// How many files below its /dev a container is searched for. The kernel gives a fresh one about twenty.
const MOST_ENTRIES: usize = 10_000;

/// Something that still has the node of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// It, or the filesystem on the device, is mounted here.
    Mounted(PathBuf),
    /// A container sees it.
    Container {
        /// A process of the container.
        pid: u32,
        /// Its program.
        program: String,
        /// Where the container sees the device.
        path: PathBuf,
    },
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(path) => write!(f, "mounted at {}", path.display()),
            Self::Container { pid, program, path } => {
                write!(f, "{} in the container of process {pid} ({program})", path.display())
            }
        }
    }
}

/// All that still has the node of the device whose LV has this path. In mount namespaces other than ours only /dev is searched, and only those
/// of processes that /proc shows.
pub(super) fn find(device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, Error> {
    // Its own node is no use of it. LVM and the kernel take that away together with the device
    let own = [std::fs::canonicalize(lv).ok(), Some(PathBuf::from("/dev"))];
    let own: Vec<u64> =
        own.into_iter().flatten().filter_map(|path| Some(std::fs::metadata(path).ok()?.dev())).collect();
    let mut uses: Vec<_> = table::targets(device)?.into_iter().map(DeviceUse::Mounted).collect();
    let ours = capabilities(Path::new("/proc/self"));
    uses.extend(containers().into_iter().filter_map(|Process { pid, root, program, capabilities }| {
        let is_privileged = ours.is_some_and(|ours| capabilities.is_some_and(|theirs| theirs & ours == ours));
        let path = search(&root, &Wanted { device, own: &own, is_privileged })?;
        Some(DeviceUse::Container { pid, program, path: Path::new("/").join(path) })
    }));
    Ok(uses)
}

/// One process of each mount namespace but ours.
struct Process {
    pid: u32,
    root: PathBuf,
    program: String,
    /// Those that it can ever have.
    capabilities: Option<u64>,
}

/// Processes may end at any time, and then are of no interest.
fn containers() -> Vec<Process> {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(&Path::new(PROCESSES).join("self")).into_iter().collect();
    let mut processes = Vec::new();
    for entry in entries(Path::new(PROCESSES)) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let process = entry.path();
        if namespace(&process).is_some_and(|namespace| seen.insert(namespace)) {
            let program = std::fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned();
            processes.push(Process { pid, root: process.join("root"), program, capabilities: capabilities(&process) });
        }
    }
    processes
}

/// The bounding set of a process.
fn capabilities(process: &Path) -> Option<u64> {
    procfs::process::Process::new_with_root(process.to_owned()).ok()?.status().ok()?.capbnd
}

struct Wanted<'a> {
    device: DeviceNumber,
    /// Filesystems in which the node may lie.
    own: &'a [u64],
    /// Whether the container may all that we may.
    is_privileged: bool,
}

impl Wanted<'_> {
    /// The container runtime gives a privileged container a node of every device of the machine, at the path that it has
    /// there. That is no use of one of them, and such a container can make nodes of any device.
    fn is_for_all_devices(&self, path: &Path) -> bool {
        let on_the_machine = std::fs::symlink_metadata(Path::new("/").join(path));
        self.is_privileged
            && on_the_machine
                .is_ok_and(|node| node.file_type().is_block_device() && device_number(node.rdev()) == self.device)
    }
}

/// Looks for a node below the /dev of a container, and in no other filesystem that is mounted there.
fn search(root: &Path, wanted: &Wanted<'_>) -> Option<PathBuf> {
    let devices = root.join(DEVICES);
    let filesystem = std::fs::metadata(&devices).ok()?.dev();
    let mut directories = vec![(devices, 0)];
    let mut left = MOST_ENTRIES;
    while let Some((directory, depth)) = directories.pop() {
        for entry in entries(&directory) {
            left = left.checked_sub(1)?;
            let path = entry.path();
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() && depth < DEPTH && metadata.dev() == filesystem {
                directories.push((path, depth + 1));
            } else if metadata.file_type().is_block_device()
                && device_number(metadata.rdev()) == wanted.device
                // A container that has the /dev of the machine has no node of its own, unless one is bound there
                && (metadata.dev() != filesystem || !wanted.own.contains(&filesystem))
                && let Ok(path) = path.strip_prefix(root)
                && !wanted.is_for_all_devices(path)
            {
                return Some(path.to_owned());
            }
        }
    }
    None
}

fn entries(directory: &Path) -> impl Iterator<Item = DirEntry> {
    std::fs::read_dir(directory).into_iter().flat_map(ReadDir::flatten)
}
