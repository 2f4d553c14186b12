//! Finds what keeps a filesystem from being unmounted: processes, mounts below it, and files of it that are loop
//! devices or swap space. Only names are read, never the files: their disk may not answer.

use std::path::{Path, PathBuf};

use super::processes::{self, ProcessName, read_entries};
use super::{MountError, MountHolder, mount_table};

/// Number of processes that are listed: a message is for people.
const MOST: usize = 5;

/// Makes the error of a mount that is in use.
pub(crate) fn busy(target: &Path) -> MountError {
    MountError::Busy { path: target.to_owned(), holders: find_mount_holders(target) }
}

/// Finds what keeps the filesystem at a path mounted.
fn find_mount_holders(target: &Path) -> Vec<MountHolder> {
    let is_below = |path: &Path| path != target && path.starts_with(target);
    let mounts = mount_table::list_mount_points().unwrap_or_default();
    let mut below: Vec<_> = mounts.into_iter().filter(|path| is_below(path)).collect();
    below.sort();
    let mut holders: Vec<_> = below.into_iter().map(MountHolder::Mount).collect();
    for entry in read_entries(Path::new("/sys/block")) {
        let Ok(file) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let file = PathBuf::from(file.trim_end());
        if is_below(&file) {
            holders.push(MountHolder::Loop { name: format!("/dev/{}", entry.file_name().display()), file });
        }
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = swaps.lines().filter_map(|line| line.split_whitespace().next().map(PathBuf::from));
    holders.extend(swaps.filter(|path| is_below(path)).map(MountHolder::Swap));
    let users = processes::list().filter_map(|pid| Some((pid, find_path_below(pid, target)?)));
    let users = users.map(|(pid, path)| MountHolder::Process { process: ProcessName::read(pid), path });
    holders.extend(users.take(MOST));
    holders
}

/// Finds a path at or below a directory that a process works in, runs or has open.
fn find_path_below(pid: u32, directory: &Path) -> Option<PathBuf> {
    processes::list_links(pid).filter_map(|link| std::fs::read_link(link).ok()).find(|path| path.starts_with(directory))
}
