//! Directories and files that volumes appear at.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::mount::Error;

/// mount(2) would follow it, and nobody would find the mount at the target.
const LINK: &str = "it is a symbolic link, where a volume needs a path of its own";

/// Makes the directory that a filesystem is to be mounted on. Says what is there instead, if something is.
pub(super) fn make_directory(path: &Path) -> Result<Option<&'static str>, Error> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Ok(Some(LINK)),
        Ok(metadata) if metadata.is_dir() => Ok(None),
        Ok(_) => Ok(Some("it is a file, where a volume needs a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_all(path).map(|()| None),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

fn make_all(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| Error::io("make directory", path, error))
}

/// Says so where there is a symbolic link.
pub(super) fn find_link(path: &Path) -> Result<Option<&'static str>, Error> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_symlink().then_some(LINK)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

/// An empty file to bind a device to. One that an interrupted call has left serves as well.
pub(super) fn make_file(path: &Path) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        make_all(parent)?;
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("make file", path, error)),
    }
}

/// Done once in the life of a filesystem. What existing deployments find: everybody may write, and new files belong to
/// the directory's group, which is kubelet's `fsGroup`.
pub(super) fn open_to_everybody(target: &Path) -> Result<(), Error> {
    std::fs::set_permissions(target, Permissions::from_mode(0o2777))
        .map_err(|error| Error::io("set the mode of", target, error))
}

/// An earlier call may have been killed between the mount and the change of mode. The root directory is then still as
/// mkfs made it, and empty; once a pod has had the volume, its mode is the pod's business.
pub(super) fn finish_opening(target: &Path) -> Result<(), Error> {
    let metadata = std::fs::metadata(target).map_err(|error| Error::io("look at", target, error))?;
    let is_as_made = metadata.uid() == 0 && metadata.gid() == 0 && metadata.mode() & 0o7777 == 0o755;
    if is_as_made && is_empty(target).map_err(|error| Error::io("list", target, error))? {
        open_to_everybody(target)?;
    }
    Ok(())
}

/// Whether nothing is in a filesystem but what mke2fs puts there.
fn is_empty(root: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(root)? {
        if entry?.file_name() != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes an empty directory or a file. A directory with something in it stays: that is data outside of any volume.
pub(super) fn remove(target: &Path) -> Result<(), Error> {
    let removed = match std::fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir(target),
        Ok(_) => std::fs::remove_file(target),
        Err(error) => Err(error),
    };
    ignore_absent(removed).map_err(|error| Error::io("remove", target, error))
}

/// What is not there need not be removed.
pub(super) fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        other => other,
    }
}
