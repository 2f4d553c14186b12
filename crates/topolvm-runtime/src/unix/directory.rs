//! The directory of a socket, which other users cannot enter if it is there for the socket alone.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::error_chain;

const PERMISSIONS: u32 = 0o777;
const PRIVATE: u32 = 0o700;
/// The mode bit of /tmp.
const STICKY: u32 = 0o1000;
/// Components of the path of a directory that is never for one program alone, such as /run.
const TOP_LEVEL: usize = 2;

/// Takes away the permissions on a directory that `mode` does not have, for example those of a hostPath volume, which
/// the kubelet creates with mode 0755, and gives a private directory those of `mode`, because an earlier process with
/// another `mode` has made it private. A directory that is not there for sockets of this user alone stays as it is.
pub(super) fn restrict(directory: &Path, mode: u32) {
    let restricted = fs::metadata(directory).and_then(|metadata| {
        let found = metadata.mode() & PERMISSIONS;
        let allowed = if found == PRIVATE { mode } else { found & mode };
        if allowed == found {
            return Ok(true);
        }
        let is_dedicated = is_dedicated(directory, &metadata)?;
        if is_dedicated {
            fs::set_permissions(directory, fs::Permissions::from_mode(allowed))?;
            tracing::info!(directory = %directory.display(), "set the mode of the socket's directory to {allowed:o}");
        }
        Ok(is_dedicated)
    });
    match restricted {
        Ok(true) => {}
        Ok(false) => tracing::info!(
            directory = %directory.display(),
            "the directory of the socket is not for sockets alone and keeps its mode; other users cannot use the socket"
        ),
        // It is created with the right mode
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(
            directory = %directory.display(),
            error = error_chain(&error),
            "cannot restrict the directory of the socket; other users cannot use the socket"
        ),
    }
}

/// Returns whether a directory belongs to the user of this process and contains only sockets, or nothing.
fn is_dedicated(directory: &Path, metadata: &Metadata) -> io::Result<bool> {
    if metadata.uid() != rustix::process::geteuid().as_raw()
        || metadata.mode() & STICKY != 0
        || directory.canonicalize()?.components().count() <= TOP_LEVEL
    {
        return Ok(false);
    }
    for entry in fs::read_dir(directory)? {
        if !entry?.file_type()?.is_socket() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(directory: &Path) -> u32 {
        fs::metadata(directory).unwrap().mode() & 0o7777
    }

    #[test]
    fn directory_is_restricted_unless_it_has_other_files() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("topolvm");
        restrict(&directory, 0o700);
        assert!(!directory.exists());
        fs::create_dir(&directory).unwrap();
        let restricted = |before: u32, wanted: u32| {
            fs::set_permissions(&directory, fs::Permissions::from_mode(before)).unwrap();
            restrict(&directory, wanted);
            mode(&directory)
        };
        let _socket = std::os::unix::net::UnixListener::bind(directory.join("a.sock")).unwrap();
        assert_eq!(restricted(0o755, 0o700), 0o700);
        assert_eq!(restricted(0o755, 0o711), 0o711);
        assert_eq!(restricted(0o710, 0o711), 0o710, "an administrator's mode");
        assert_eq!(restricted(0o700, 0o711), 0o711, "no user was listed before");
        assert_eq!(restricted(0o1777, 0o700), 0o1777, "shared by all");
        fs::write(directory.join("other"), "").unwrap();
        assert_eq!(restricted(0o755, 0o700), 0o755);
    }

    #[test]
    fn directory_of_all_programs_is_not_restricted() {
        for shared in ["/run", "/tmp", "/var/run"] {
            let metadata = fs::metadata(shared).unwrap();
            assert!(!is_dedicated(Path::new(shared), &metadata).unwrap(), "{shared}");
        }
    }
}
