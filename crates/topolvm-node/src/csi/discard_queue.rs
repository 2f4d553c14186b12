//! The new filesystems whose free blocks are to be discarded.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tokio::sync::Notify;
use topolvm_runtime::CancellationToken;

/// The paths of mounted filesystems whose free blocks are to be discarded, one after the other.
#[derive(Debug, Default)]
pub(super) struct DiscardQueue {
    state: Mutex<State>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<PathBuf>,
    running: Option<Discard>,
}

/// A filesystem that is being worked on.
#[derive(Clone, Debug)]
pub(super) struct Discard {
    pub(super) target: PathBuf,
    /// Ends the work early.
    pub(super) stop: CancellationToken,
    /// Cancelled when the filesystem is not in use for it any more.
    ended: CancellationToken,
}

impl DiscardQueue {
    /// Adds a mounted filesystem.
    pub(super) fn push(&self, target: &Path) {
        self.state.lock().waiting.push_back(target.to_owned());
        self.pushed.notify_one();
    }

    /// Takes out the filesystem that is mounted at a path, and ends the work on it, which would keep it from being
    /// unmounted.
    pub(super) async fn cancel(&self, target: &Path) {
        let running = {
            let mut state = self.state.lock();
            state.waiting.retain(|waiting| waiting != target);
            state.running.clone().filter(|running| running.target == target)
        };
        if let Some(running) = running {
            running.stop.cancel();
            running.ended.cancelled().await;
        }
    }

    /// Waits until a filesystem is added.
    pub(super) async fn pushed(&self) {
        self.pushed.notified().await;
    }

    /// Takes out the filesystem that has waited longest.
    pub(super) fn start_next(&self, shutdown: &CancellationToken) -> Option<Discard> {
        let mut state = self.state.lock();
        let target = state.waiting.pop_front()?;
        let next = Discard { target, stop: shutdown.child_token(), ended: CancellationToken::new() };
        state.running = Some(next.clone());
        Some(next)
    }

    /// Records the end of the work on a filesystem.
    pub(super) fn end(&self, discard: &Discard) {
        self.state.lock().running = None;
        discard.ended.cancel();
    }
}
