//! Finds the hierarchy of cgroups that has the controller of I/O, in the mount table of a process.

use std::path::{Path, PathBuf};

use procfs::process::MountInfo;

use super::{CgroupFiles, LimitError, controller};

/// Version of a hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Version 2, the unified one.
    Unified,
    /// The hierarchy of the controller `blkio` in version 1.
    Blkio,
}

/// A hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Its topmost directory.
    pub(super) root: PathBuf,
}

impl Hierarchy {
    /// Finds the hierarchy that has the controller of I/O, which can be in one only. With both versions mounted it is
    /// mostly in version 1.
    pub(super) fn find(process: &Path, files: &dyn CgroupFiles) -> Result<Option<Self>, LimitError> {
        let table = process.join("mountinfo");
        let text = files.read(&table).map_err(|error| LimitError::file("read", &table, error))?;
        // A node with many pods has thousands of lines
        let lines = text.lines().filter(|line| line.contains(" - cgroup"));
        let mounts: Vec<MountInfo> = lines.filter_map(|line| MountInfo::from_line(line).ok()).collect();
        let root = |mount: &MountInfo| {
            let inside = mount.mount_point.strip_prefix("/").unwrap_or(&mount.mount_point);
            process.join("root").join(inside)
        };
        let unified = mounts.iter().filter(|mount| mount.fs_type == "cgroup2").map(root);
        let blkio = mounts
            .iter()
            .filter(|mount| mount.fs_type == "cgroup" && mount.super_options.keys().any(|option| option == "blkio"));
        let has_io = |root: &PathBuf| controller::is_available(files, root);
        let unified = unified.into_iter().find(has_io).map(|root| Self { version: Version::Unified, root });
        Ok(unified.or_else(|| blkio.map(root).next().map(|root| Self { version: Version::Blkio, root })))
    }
}
