//! Finds the cgroup of a pod by its UID: kubelet names it `podUID` (driver cgroupfs), or `...-podUID.slice` with `_`
//! for `-` (driver systemd), below a root that is configured, or that of a container in which kubelet itself runs.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use super::LimitError;

/// Most directories that are searched. A node with hundreds of pods has some thousand.
const MAX_DIRECTORIES: usize = 100_000;

/// Finds the directories of a pod anywhere below `root`. There is mostly one.
pub(super) fn find_pod_directories(root: &Path, pod: &str) -> Result<Vec<PathBuf>, LimitError> {
    let Some(name) = PodName::new(pod) else { return Ok(Vec::new()) };
    let top = std::fs::read_dir(root).map_err(|error| LimitError::file("list", root, error))?;
    let mut waiting: Vec<PathBuf> = directories(top.flatten()).collect();
    let mut found = Vec::new();
    let mut left = MAX_DIRECTORIES;
    while let (Some(directory), Some(fewer)) = (waiting.pop(), left.checked_sub(1)) {
        left = fewer;
        if name.is_of(&directory) {
            found.push(directory);
        } else {
            // A cgroup may go at any time
            waiting
                .extend(std::fs::read_dir(&directory).into_iter().flat_map(|entries| directories(entries.flatten())));
        }
    }
    Ok(found)
}

/// Finds the directories of a pod that are directly in one of these. Lists none of them: they have one for each pod.
pub(super) fn find_in(parents: &[PathBuf], pod: &str) -> Vec<PathBuf> {
    let Some(name) = PodName::new(pod) else { return Vec::new() };
    parents.iter().flat_map(|parent| name.paths_in(parent)).filter(|directory| directory.is_dir()).collect()
}

fn directories(entries: impl Iterator<Item = DirEntry>) -> impl Iterator<Item = PathBuf> {
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The names that kubelet gives the cgroup of a pod.
struct PodName {
    cgroupfs: String,
    /// End of the name; before it are the names of the slices above.
    systemd: String,
}

impl PodName {
    /// Makes the names; `None` without a UID, which would be in every name.
    fn new(pod: &str) -> Option<Self> {
        (!pod.is_empty())
            .then(|| Self { cgroupfs: format!("pod{pod}"), systemd: format!("-pod{}.slice", pod.replace('-', "_")) })
    }

    /// Returns the paths that the pod can have in a directory. The name of a slice begins with that of the one above.
    fn paths_in(&self, parent: &Path) -> impl Iterator<Item = PathBuf> {
        let slice = parent.file_name().and_then(|name| name.to_str()?.strip_suffix(".slice"));
        let slice = slice.map(|above| parent.join(format!("{above}{}", self.systemd)));
        std::iter::once(parent.join(&self.cgroupfs)).chain(slice)
    }

    fn is_of(&self, directory: &Path) -> bool {
        let name = directory.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name == self.cgroupfs || name.ends_with(&self.systemd))
    }
}
