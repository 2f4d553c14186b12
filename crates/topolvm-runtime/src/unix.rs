//! Unix sockets that only root can reach.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that is no socket is in the way, and deleting it could lose data.
    #[error("{} exists and is not a socket; remove it or set another socket path", .0.display())]
    NotASocket(PathBuf),
    /// Somebody serves this socket already.
    #[error("another process already serves {}; stop it first", .0.display())]
    InUse(PathBuf),
    /// The file system said no.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
}

/// Listens on `path` with mode 0600. A missing parent directory is made with mode 0700; a socket that a dead process left
/// is replaced.
pub async fn listen(path: &Path) -> Result<UnixListener, Error> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(io("make directory", parent))?;
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(Error::NotASocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path).await {
            // Nobody listens: its process has died. Any other error may come from a server that is only busy.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(io("remove", path))?;
            }
            Err(error) => return Err(io("connect to", path)(error)),
            Ok(_) => return Err(Error::InUse(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io("look at", path)(error)),
    }
    // The mode is set on a name that nobody knows yet: a client cannot connect in between.
    let hidden = hidden_sibling(path);
    drop(fs::remove_file(&hidden));
    let listener = UnixListener::bind(&hidden).map_err(io("bind", &hidden))?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600)).map_err(io("set the mode of", &hidden))?;
    fs::rename(&hidden, path).map_err(io("rename into place", path))?;
    Ok(listener)
}

fn hidden_sibling(path: &Path) -> PathBuf {
    // Short, because a socket's path has 108 bytes at most
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_and_a_dead_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("a.sock");
        drop(listen(&path).await.unwrap());
        let _listener = listen(&path).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(listen(&path).await, Err(Error::InUse(_))));
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let error = listen(dir.path()).await.unwrap_err();
        assert!(error.to_string().contains("is not a socket; remove it or set another socket path"), "{error}");
        let file = dir.path().join("data");
        fs::write(&file, "precious").unwrap();
        assert!(listen(&file).await.is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
