//! Unix sockets that listen: their modes, access control by user and group, and binding again when the file is deleted.

mod directory;
mod peers;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::error_chain;
use crate::files::Files;

use peers::AccessControl;
pub use peers::Peers;

/// A socket that cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that is no socket is in the way, and deleting it could lose data.
    #[error("{} exists and is not a socket; remove it or set another socket path", .0.display())]
    NotASocket(PathBuf),
    /// Another process serves this socket already.
    #[error("another process already serves {}; stop it first", .0.display())]
    InUse(PathBuf),
    /// An error of the file system.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Back-off of attempts to bind again.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// Interval at which a successor checks whether its predecessor has ended.
const SUCCESSION_INTERVAL: Duration = Duration::from_millis(500);

/// A listening socket. When its file is deleted, which its clients cannot distinguish from a dead server, it is bound
/// again.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    /// Refuses clients; `None`: every client that can reach the socket may use it.
    access: Option<AccessControl>,
    path: PathBuf,
    modes: Modes,
    files: Files,
    bound: Bound,
    /// The time of the next attempt, after a failure.
    retry_at: Option<Instant>,
    backoff: Backoff,
}

/// Modes of the socket, and of its directory where that has to be made.
#[derive(Clone, Copy, Debug)]
struct Modes {
    directory: u32,
    socket: u32,
}

/// Device and inode of the socket file of a listener. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound(Arc<Mutex<Option<Identity>>>);

/// Device and inode.
type Identity = (u64, u64);

impl Bound {
    /// Returns whether the file at this path is the socket.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let bound = *self.0.lock();
        bound.is_some() && identity(path) == bound
    }

    fn set(&self, path: &Path) {
        *self.0.lock() = identity(path);
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

impl Listener {
    /// The path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Identity of the socket file.
    pub(crate) fn bound(&self) -> Bound {
        self.bound.clone()
    }

    /// Returns the connections of those who may use the socket; the others are closed before a byte is read or written.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<UnixStream>> + Unpin {
        // On the heap, for it is part of futures that are moved
        Box::pin(futures::stream::unfold(self, |mut listener| async move {
            loop {
                let connection = listener.accept().await;
                let admitted = match &mut listener.access {
                    None => Some(connection),
                    Some(access) => connection.map(|connection| access.admit(connection)).transpose(),
                };
                if let Some(admitted) = admitted {
                    return Some((admitted, listener));
                }
            }
        }))
    }

    async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            // Not only after a change: what is deleted before its watch begins is none
            while self.retry_at.is_none() && self.rebind_if_deleted().await {}
            let retry_at = self.retry_at;
            tokio::select! {
                accepted = self.inner.accept() => return accepted.map(|(connection, _)| connection),
                () = self.files.changed() => {}
                () = sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {}
            }
            self.retry_at = None;
        }
    }

    /// Binds the path again if the socket does not exist any more, and returns whether it did. A socket that another
    /// process serves by now stays.
    async fn rebind_if_deleted(&mut self) -> bool {
        if self.bound.is_at(&self.path) {
            return false;
        }
        match bind(&self.path, self.modes).await {
            Ok(inner) => {
                tracing::warn!(socket = %self.path.display(), "the socket was deleted; listening again");
                self.inner = inner;
                self.bound.set(&self.path);
                // The old watch knows of the deletion as the last state, and a second one would be no change to it
                self.files = Files::watch([self.path.clone()]);
                self.backoff.reset();
                return true;
            }
            Err(error @ Error::InUse(_)) => tracing::warn!(%error, "this process is no longer reachable"),
            Err(error) => {
                let pause = self.backoff.fail();
                tracing::error!(
                    error = error_chain(&error),
                    again_in_seconds = pause.as_secs(),
                    "the socket was deleted and cannot be recreated"
                );
                self.retry_at = Some(Instant::now() + pause);
            }
        }
        false
    }

    async fn new(path: &Path, modes: Modes, access: Option<AccessControl>) -> Result<Self, Error> {
        let inner = bind(path, modes).await?;
        let files = Files::watch([path.to_owned()]);
        let bound = Bound::default();
        bound.set(path);
        let backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        Ok(Self { inner, access, path: path.to_owned(), modes, files, bound, retry_at: None, backoff })
    }
}

/// Listens on `path` for every client that can reach it: the socket has mode 0600, and a missing parent directory is
/// created with mode 0700. A socket that a dead process left is replaced.
pub async fn listen(path: &Path) -> Result<Listener, Error> {
    Listener::new(path, Modes { directory: 0o700, socket: 0o600 }, None).await
}

/// Listens on `path` for root, for the user of this process and for `peers`, whatever the modes of files. Modes are
/// those of [`listen`], unless others are listed: then the socket has mode 0666, a missing parent directory is created
/// with mode 0711, and an existing one must let them through. An existing directory that is there for the socket alone
/// gets the mode of a created one.
pub async fn listen_for(path: &Path, peers: Peers) -> Result<Listener, Error> {
    let (directory, socket) = if peers.is_empty() { (0o700, 0o600) } else { (0o711, 0o666) };
    if let Some(parent) = path.parent() {
        directory::restrict(parent, directory);
    }
    Listener::new(path, Modes { directory, socket }, Some(AccessControl::new(peers))).await
}

/// Waits until no other process serves the socket, and returns true; false if the shutdown begins before. A DaemonSet
/// that rolls out with `maxSurge` starts the successor of a pod before that pod ends, and the two must not work side by
/// side.
pub async fn wait_until_free(path: &Path, shutdown: &CancellationToken) -> bool {
    let mut has_waited = false;
    while UnixStream::connect(path).await.is_ok() {
        if !has_waited {
            tracing::warn!(socket = %path.display(), "another process serves the socket; waiting until it exits");
            has_waited = true;
        }
        if shutdown.run_until_cancelled(sleep(SUCCESSION_INTERVAL)).await.is_none() {
            return false;
        }
    }
    if has_waited {
        tracing::info!(socket = %path.display(), "the other process has exited");
    }
    true
}

async fn bind(path: &Path, modes: Modes) -> Result<UnixListener, Error> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    };
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(modes.directory)
            .create(parent)
            .map_err(io("create directory", parent))?;
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(Error::NotASocket(path.to_owned())),
        Ok(_) => match UnixStream::connect(path).await {
            // No listener: its process has died. Any other error may come from a server that is only busy.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(io("remove", path))?;
            }
            Err(error) => return Err(io("connect to", path)(error)),
            Ok(_) => return Err(Error::InUse(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io("inspect", path)(error)),
    }
    // The mode is set on a name that is not public yet: a client cannot connect in between.
    let hidden = temporary_path(path);
    drop(fs::remove_file(&hidden));
    let listener = UnixListener::bind(&hidden).map_err(io("bind", &hidden))?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(modes.socket)).map_err(io("set the mode of", &hidden))?;
    fs::rename(&hidden, path).map_err(io("rename into place", path))?;
    Ok(listener)
}

fn temporary_path(path: &Path) -> PathBuf {
    // Short, because a socket's path has 108 bytes at most
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn deleted_socket_is_recreated_also_with_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugins").join("a.sock");
        let mut connections = Box::pin(listen(&path).await.unwrap().connections());
        for number in 0..3 {
            if number == 1 {
                fs::remove_dir_all(path.parent().unwrap()).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
            let connecting = async {
                let mut files = Files::watch([path.clone()]);
                loop {
                    if let Ok(connection) = UnixStream::connect(&path).await {
                        return connection;
                    }
                    files.changed().await;
                }
            };
            let (accepted, _connected) = tokio::join!(connections.next(), connecting);
            accepted.unwrap().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[tokio::test]
    async fn a_socket_that_another_process_serves_by_now_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let mut first = listen(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let successor = listen(&path).await.unwrap();
        first.rebind_if_deleted().await;
        assert!(successor.bound().is_at(&path) && !first.bound().is_at(&path));
        // Until that one has gone without a word
        drop(successor);
        first.rebind_if_deleted().await;
        assert!(first.bound().is_at(&path));
    }

    #[tokio::test(start_paused = true)]
    async fn socket_is_waited_for_until_its_predecessor_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let shutdown = CancellationToken::new();
        assert!(wait_until_free(&path, &shutdown).await, "no process serves it");
        let predecessor = listen(&path).await.unwrap();
        let waiting = wait_until_free(&path, &shutdown);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_mins(10), &mut waiting).await.is_err());
        drop(predecessor);
        assert!(waiting.await, "a dead one is free");
        let _predecessor = listen(&path).await.unwrap();
        shutdown.cancel();
        assert!(!wait_until_free(&path, &shutdown).await);
    }

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

    /// User IDs without an account.
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
    async fn socket_admits_root_and_listed_users_and_refuses_others() {
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
    async fn socket_is_unreachable_for_others_without_listed_users() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // With another file in the directory everybody can enter it
        fs::write(dir.path().join("other"), "").unwrap();
        let path = dir.path().join("a.sock");
        let _listener = listen_for(&path, Peers::default()).await.unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o755);
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
        let error = listen(&file).await.unwrap_err();
        assert!(error.to_string().contains("is not a socket; remove it or set another socket path"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
