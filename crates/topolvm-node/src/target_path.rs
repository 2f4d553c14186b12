//! Directories and files at target paths: made, given their mode, and removed.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use linux_mount::MountError;

/// Message about a symbolic link. mount(2) would follow it, and the mount would not be at the target.
const SYMLINK: &str = "it is a symbolic link, but a volume needs its own path";

/// Creates the directory on which a filesystem is to be mounted. Returns what exists there instead, if anything does.
pub(crate) fn create_directory(path: &Path) -> Result<Option<&'static str>, MountError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Ok(Some(SYMLINK)),
        Ok(metadata) if metadata.is_dir() => Ok(None),
        Ok(_) => Ok(Some("it is a file, but a volume needs a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => create_directories(path).map(|()| None),
        Err(error) => Err(MountError::io("inspect", path, error)),
    }
}

fn create_directories(path: &Path) -> Result<(), MountError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|error| MountError::io("create directory", path, error))
}

/// Returns a message if the path is a symbolic link.
pub(crate) fn find_symlink(path: &Path) -> Result<Option<&'static str>, MountError> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_symlink().then_some(SYMLINK)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(MountError::io("inspect", path, error)),
    }
}

/// Creates an empty file to bind a device to. One that an interrupted call has left serves as well.
pub(crate) fn create_file(path: &Path) -> Result<(), MountError> {
    if let Some(parent) = path.parent() {
        create_directories(parent)?;
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(MountError::io("create file", path, error)),
    }
}

/// Sets the mode of a new filesystem's root directory, once in its life, to 2777, which existing deployments rely on:
/// everybody may write, and new files belong to the directory's group, which is kubelet's `fsGroup`.
pub(crate) fn set_shared_mode(target: &Path) -> Result<(), MountError> {
    std::fs::set_permissions(target, Permissions::from_mode(0o2777))
        .map_err(|error| MountError::io("set the mode of", target, error))
}

/// Sets the mode of a root directory that is as mkfs made it, and empty: an earlier call may have been killed between
/// the mount and the change of mode. Once a pod has had the volume, the mode is the pod's business.
pub(crate) fn set_shared_mode_if_new(target: &Path) -> Result<(), MountError> {
    let metadata = std::fs::metadata(target).map_err(|error| MountError::io("inspect", target, error))?;
    let is_as_made = metadata.uid() == 0 && metadata.gid() == 0 && metadata.mode() & 0o7777 == 0o755;
    if is_as_made && is_empty(target).map_err(|error| MountError::io("list", target, error))? {
        set_shared_mode(target)?;
    }
    Ok(())
}

/// Returns whether a filesystem is empty but for what mke2fs puts there.
fn is_empty(root: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(root)? {
        if entry?.file_name() != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes an empty directory or a file. A directory with something in it stays: that is data outside of any volume.
pub(crate) fn remove_target(target: &Path) -> Result<(), MountError> {
    let removed = match std::fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir(target),
        Ok(_) => std::fs::remove_file(target),
        Err(error) => Err(error),
    };
    ignore_not_found(removed).map_err(|error| MountError::io("remove", target, error))
}

/// Turns "not found" into success.
pub(crate) fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        other => other,
    }
}
