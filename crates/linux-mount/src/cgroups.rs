//! Limits of the I/O of pods on devices, in the kernel's control groups (cgroups(7)): `io.max` of version 2, the files
//! `blkio.throttle` of version 1 where there is nothing else.

mod blkio;
mod controller;
mod hierarchy;
mod io_max;
mod known_directories;
mod pod_directory;

use std::fmt::Debug;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use topolvm_api::IoLimits;

use super::{DeviceNumber, MountError};
use hierarchy::{Hierarchy, Version};
use known_directories::KnownDirectories;
use pod_directory::find_pod_directories;

/// The first process of the machine, which sees the cgroups of all pods. Containers see a part of them.
const FIRST_PROCESS: &str = "/proc/1";

/// Reads and writes the files of cgroups.
pub(crate) trait CgroupFiles: Debug + Send + Sync {
    /// Reads a file.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Writes a line to an existing file, in one write(2), which the kernel takes for one command.
    fn write(&self, path: &Path, line: &str) -> io::Result<()>;
}

/// The files that the kernel has.
#[derive(Debug)]
struct KernelFiles;

impl CgroupFiles for KernelFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        std::fs::read_to_string(path)
    }

    fn write(&self, path: &Path, line: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.write_all(line.as_bytes())
    }
}

/// Limits that the kernel has for a pod on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsInForce {
    /// The limits, as the kernel shows them.
    pub limits: IoLimits,
    /// Reason for which they are not all that was asked for.
    pub exception: Option<&'static str>,
}

/// Limits that a pod is to have on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLimits {
    /// UID of the pod.
    pub pod: String,
    /// The device.
    pub device: DeviceNumber,
    /// All of its limits on the device.
    pub limits: IoLimits,
}

/// Error of limits that the kernel does not have.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// The machine has no controller of I/O.
    #[error(
        "the kernel of the node has no cgroup controller for I/O (io of version 2, or blkio of version 1); use a \
         kernel that is built with it, and remove cgroup_disable from its command line"
    )]
    NoController,
    /// The pod has no cgroup here.
    #[error(
        "topolvm-node does not find the cgroup of pod {0}; its own pod needs hostPID and privileged, and kubelet needs \
         cgroupsPerQOS"
    )]
    NoPod(String),
    /// The controller is not enabled for pods, and cannot be.
    #[error("the cgroup controller io is not enabled in {}, and cannot be enabled", .path.display())]
    NotEnabled {
        /// The file that takes it not.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}", .path.display())]
    File {
        /// Action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel shows other limits than those that were written.
    #[error(
        "{} does not contain the limits that were written; another program on the node may change it", .0.display())]
    NotInForce(PathBuf),
    /// The machine does not answer.
    #[error(transparent)]
    Machine(#[from] MountError),
}

impl LimitError {
    fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }
}

/// The control groups of the machine. Clones share what they have found.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    /// Directory of the process whose mount table shows the hierarchies, in /proc.
    process: PathBuf,
    files: Arc<dyn CgroupFiles>,
    /// Directories in which pods were found. Only a hint: others may be elsewhere.
    parents: Arc<Mutex<Vec<PathBuf>>>,
    /// Directories in which pods had their limits at the last check.
    known: Arc<Mutex<KnownDirectories>>,
}

impl Cgroups {
    /// Makes the cgroups of the machine.
    pub(crate) fn of_machine() -> Self {
        Self::new(FIRST_PROCESS.into(), Arc::new(KernelFiles))
    }

    fn new(process: PathBuf, files: Arc<dyn CgroupFiles>) -> Self {
        Self { process, files, parents: Arc::default(), known: Arc::default() }
    }

    /// Sets these limits, and no others, for the pod of this UID on a device, and returns the limits that the kernel
    /// reports. A pod without a cgroup has no limits.
    pub(crate) fn limit(
        &self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        let hierarchy = Hierarchy::find(&self.process, &*self.files)?;
        let directories = match hierarchy {
            Some(ref hierarchy) => self.find_pod(hierarchy, pod)?,
            None if requested.is_empty() => return Ok(LimitsInForce::default()),
            None => return Err(LimitError::NoController),
        };
        if directories.is_empty() {
            return if requested.is_empty() {
                Ok(LimitsInForce::default())
            } else {
                Err(LimitError::NoPod(pod.to_owned()))
            };
        }
        let Some(hierarchy) = hierarchy else { return Err(LimitError::NoController) };
        let mut in_force = LimitsInForce::default();
        for directory in directories {
            in_force = match hierarchy.version {
                Version::Unified => io_max::limit(&*self.files, &hierarchy.root, &directory, device, requested)?,
                Version::Blkio => blkio::limit(&*self.files, &directory, device, requested)?,
            };
        }
        Ok(in_force)
    }

    /// Returns those limits that the kernel has no more, and changes nothing. A pod that has no cgroup has ended.
    pub(crate) fn find_lost(&self, expected: Vec<PodLimits>) -> Result<Vec<PodLimits>, LimitError> {
        let uncertain = self.known.lock().without_limited(&*self.files, expected);
        if uncertain.is_empty() {
            return Ok(Vec::new());
        }
        let hierarchy = Hierarchy::find(&self.process, &*self.files)?.ok_or(LimitError::NoController)?;
        let mut lost = Vec::new();
        for wanted in uncertain {
            let PodLimits { pod, device, limits } = &wanted;
            let directories = match hierarchy.version {
                Version::Unified => self.find_pod(&hierarchy, pod)?,
                // Searched everywhere when limits are set: here it would be for each pod, again and again
                Version::Blkio => pod_directory::find_in(&self.parents.lock(), pod),
            };
            let are_in_force = |directory: &PathBuf| match hierarchy.version {
                Version::Unified => io_max::are_in_force(&*self.files, directory, *device, limits),
                Version::Blkio => blkio::are_in_force(&*self.files, directory, *device, limits),
            };
            if !directories.iter().all(are_in_force) {
                lost.push(wanted);
            } else if hierarchy.version == Version::Unified {
                self.known.lock().insert(pod.clone(), directories);
            }
        }
        Ok(lost)
    }

    /// Finds the directories of a pod, first where others were found.
    fn find_pod(&self, hierarchy: &Hierarchy, pod: &str) -> Result<Vec<PathBuf>, LimitError> {
        let parents = self.parents.lock().clone();
        let mut found = pod_directory::find_in(&parents, pod);
        // An empty one may be left over, and the pod be elsewhere
        found
            .retain(|directory| hierarchy.version == Version::Unified && io_max::is_populated(&*self.files, directory));
        if !found.is_empty() {
            return Ok(found);
        }
        let found = find_pod_directories(&hierarchy.root, pod)?;
        *self.parents.lock() = {
            let mut parents: Vec<PathBuf> = parents.into_iter().filter(|parent| parent.is_dir()).collect();
            parents.extend(found.iter().filter_map(|directory| directory.parent()).map(Path::to_owned));
            parents.sort();
            parents.dedup();
            parents
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
