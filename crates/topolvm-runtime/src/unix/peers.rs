//! Access control of a unix socket: the kernel reports the user and group that a client had when it connected.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::Instant;

/// At most one refusal in this time is logged: who is refused once tends to try again at once.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Users and groups that may use a socket besides root and the user of this process.
///
/// A process in another user namespace counts as the user that it is outside of it, or as 65534 when it is none there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// User ids.
    pub uids: BTreeSet<u32>,
    /// Group ids. Only the primary group of a client counts: it is the one that the kernel reports.
    pub gids: BTreeSet<u32>,
}

impl Peers {
    /// Returns whether no peer is listed.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }

    /// Returns whether a client with these effective ids may use the socket.
    pub fn allow(&self, uid: u32, gid: u32) -> bool {
        let own = rustix::process::geteuid().as_raw();
        uid == 0 || uid == own || self.uids.contains(&uid) || self.gids.contains(&gid)
    }
}

/// Admits clients, and logs who is refused.
#[derive(Debug)]
pub(super) struct AccessControl {
    peers: Peers,
    /// Time of the last refusal in the log, and the number since.
    last_logged: Option<Instant>,
    unlogged: u64,
}

impl AccessControl {
    pub(super) fn new(peers: Peers) -> Self {
        Self { peers, last_logged: None, unlogged: 0 }
    }

    /// Returns the connection, or nothing when it is refused. Nothing was read from it or written to it.
    pub(super) fn admit(&mut self, connection: UnixStream) -> Option<UnixStream> {
        let who = connection.peer_cred().map(|who| (who.uid(), who.gid(), who.pid()));
        match who {
            Ok((uid, gid, _)) if self.peers.allow(uid, gid) => return Some(connection),
            Ok(_) | Err(_) => {}
        }
        if self.last_logged.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        let since_last_time = std::mem::take(&mut self.unlogged);
        self.last_logged = Some(Instant::now());
        match who {
            Ok((uid, gid, pid)) => tracing::warn!(
                uid,
                gid,
                pid,
                since_last_time,
                "rejected a client of the socket: it is not root, and neither its user nor its primary group is allowed"
            ),
            Err(error) => {
                tracing::warn!(%error, since_last_time, "rejected a client of the socket: cannot determine its user");
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No user of these tests.
    const USER: u32 = 4_000_001;

    #[test]
    fn peers_are_root_ourselves_and_listed_users_only() {
        let own = rustix::process::geteuid().as_raw();
        let closed = Peers::default();
        assert!(closed.allow(0, USER) && closed.allow(own, USER));
        assert!(!closed.allow(USER, 0), "the group root is not root");
        let peers = Peers { uids: [USER].into(), gids: [USER + 1].into() };
        assert!(peers.allow(USER, USER) && peers.allow(USER + 2, USER + 1));
        assert!(!peers.allow(USER + 1, USER), "a uid is no gid");
    }
}
