//! inotify(7): waits until something happens in a directory.
//!
//! Not the crate notify: it would be as many lines, a thread for each set of files, and a licence that deny.toml does
//! not have, and directories that go and come back, or that a symbolic link leads to, would still have to be found
//! here.

use std::io;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::net::unix::pipe::Receiver;

/// The events that can make a path mean another file or other content. Writing counts when it is finished.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// An inotify instance that reports that something happened, and not what.
#[derive(Debug)]
pub(super) struct Inotify {
    /// Events are read from it as bytes are from a pipe, and tokio waits for both in the same way.
    queue: Receiver,
}

impl Inotify {
    /// Makes an instance; fails when the user has too many of them.
    pub(super) fn new() -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { queue: Receiver::from_owned_fd_unchecked(queue)? })
    }

    /// Watches a directory, or the nearest one above it that exists. Watching what is watched already changes nothing;
    /// a directory that is removed is not watched any more.
    pub(super) fn watch_nearest(&self, directory: &Path) {
        let mut watched = None;
        loop {
            let nearest = directory.ancestors().find(|ancestor| self.watch(ancestor));
            // A directory that was created below it before the watch began caused no event, so search again
            if nearest == watched {
                return;
            }
            watched = nearest;
        }
    }

    fn watch(&self, directory: &Path) -> bool {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        inotify::add_watch(&self.queue, directory, EVENTS).is_ok()
    }

    /// Waits for an event, and drains all that are queued.
    pub(super) async fn event(&self) {
        // More than one event with the longest name, which is what the kernel asks for
        let mut buffer = [0; 4096];
        loop {
            if self.queue.readable().await.is_err() {
                // The runtime is going away
                return std::future::pending().await;
            }
            let mut any = false;
            while self.queue.try_read(&mut buffer).is_ok_and(|length| length > 0) {
                any = true;
            }
            if any {
                return;
            }
        }
    }
}
