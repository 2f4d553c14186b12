//! Unix sockets: who can reach them, and who is let in.

mod peers;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use futures::{Stream, StreamExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;

use peers::Doorkeeper;
pub use peers::Peers;

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

/// A socket that is listened on, and who may use it.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    /// `None`: whoever can reach it.
    door: Option<Doorkeeper>,
    path: PathBuf,
}

impl Listener {
    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The connections of those who may use it; the others are closed before a byte is read or written.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<UnixStream>> {
        let mut door = self.door;
        UnixListenerStream::new(self.inner).filter_map(move |connection| {
            std::future::ready(match &mut door {
                None => Some(connection),
                Some(door) => connection.map(|connection| door.admit(connection)).transpose(),
            })
        })
    }
}

/// Listens on `path` for whoever can reach it: the socket has mode 0600, and a missing parent directory is made with mode
/// 0700. A socket that a dead process left is replaced.
pub async fn listen(path: &Path) -> Result<Listener, Error> {
    Ok(Listener { inner: bind(path, 0o700, 0o600).await?, door: None, path: path.to_owned() })
}

/// Listens on `path` for root, for the user of this process and for `peers`, whatever the modes of files say. Modes are those of
/// [`listen`], unless others are listed: then the socket has mode 0666, a missing parent directory is made with mode 0711, and
/// one that exists must let them through.
pub async fn listen_for(path: &Path, peers: Peers) -> Result<Listener, Error> {
    let (directory_mode, mode) = if peers.is_empty() { (0o700, 0o600) } else { (0o711, 0o666) };
    let inner = bind(path, directory_mode, mode).await?;
    Ok(Listener { inner, door: Some(Doorkeeper::new(peers)), path: path.to_owned() })
}

async fn bind(path: &Path, directory_mode: u32, mode: u32) -> Result<UnixListener, Error> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(directory_mode)
            .create(parent)
            .map_err(io("make directory", parent))?;
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
    fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).map_err(io("set the mode of", &hidden))?;
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

    /// Users of nobody.
    const LISTED: u32 = 4_000_001;
    const STRANGER: u32 = 4_000_002;

    /// Connects as a user. Only this thread becomes it. `None` when we are not root.
    fn connect_as(uid: u32, path: &Path) -> Option<io::Result<std::os::unix::net::UnixStream>> {
        let path = path.to_owned();
        let connecting = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user).ok()?;
            Some(std::os::unix::net::UnixStream::connect(path))
        });
        connecting.join().unwrap()
    }

    #[tokio::test]
    async fn a_stranger_is_refused_before_a_byte_and_the_listed_are_let_in() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("new").join("a.sock");
        let peers = Peers { uids: [LISTED].into(), ..Peers::default() };
        let mut connections = Box::pin(listen_for(&path, peers).await.unwrap().connections());
        let Some(stranger) = connect_as(STRANGER, &path) else {
            println!("skipped: not root, so there is no other user to connect as");
            return;
        };
        let _listed = connect_as(LISTED, &path).unwrap().unwrap();
        let admitted = connections.next().await.unwrap().unwrap();
        assert_eq!(admitted.peer_cred().unwrap().uid(), LISTED);
        let mut answer = Vec::new();
        io::Read::read_to_end(&mut stranger.unwrap(), &mut answer).unwrap();
        assert_eq!(answer, b"");
        // Root is let in without being listed
        let _root = UnixStream::connect(&path).await.unwrap();
        connections.next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn when_nobody_is_listed_others_do_not_even_reach_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("a.sock");
        let _listener = listen_for(&path, Peers::default()).await.unwrap();
        match connect_as(STRANGER, &path) {
            None => println!("skipped: not root, so there is no other user to connect as"),
            Some(refused) => assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied),
        }
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
