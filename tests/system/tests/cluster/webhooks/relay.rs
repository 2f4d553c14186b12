//! A TCP relay between the API server and a replica whose connections a test can close. The API server would reuse
//! them, and then check a certificate only once.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use testbed::netns::NetNs;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that listens on one address in a network namespace and forwards all bytes to another, until it is dropped.
pub(super) struct Relay {
    netns: NetNs,
    at: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Connections>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Connections {
    /// Number of connections so far.
    count: usize,
    /// Open connections: the caller's end, and the channel that signals that the caller has closed it.
    open: Vec<(TcpStream, Receiver<()>)>,
}

impl Relay {
    pub(super) fn start(netns: &NetNs, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let listener = netns.enter(|| TcpListener::bind(at))?.with_context(|| format!("listen on {at}"))?;
        let relay = Self { netns: netns.clone(), at, shared: Arc::default() };
        let (netns, shared) = (netns.clone(), relay.shared.clone());
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // The caller notices a replica that does not answer
                let Ok(Ok(far)) = netns.connect(to, TIMEOUT) else { continue };
                drop(shared.take_over(near, far));
            }
        });
        Ok(relay)
    }

    /// Closes all connections, between calls. Returns the number of connections so far.
    pub(super) fn cut(&self) -> Result<usize> {
        let mut connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for (near, closed) in connections.open.drain(..) {
            // The caller may have closed it before. If not, it would send the next call into a closed connection
            drop(near.shutdown(Shutdown::Write));
            closed.recv_timeout(TIMEOUT).context("the caller keeps a connection that has been closed")?;
        }
        Ok(connections.count)
    }
}

impl Shared {
    fn take_over(&self, mut near: TcpStream, mut far: TcpStream) -> io::Result<()> {
        let (sender, closed) = channel();
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.count += 1;
        connections.open.push((near.try_clone()?, closed));
        let (mut to_near, mut from_far) = (near.try_clone()?, far.try_clone()?);
        thread::spawn(move || {
            drop(io::copy(&mut near, &mut far));
            drop([near, far].map(|end| end.shutdown(Shutdown::Both)));
            let _no_receiver = sender.send(());
        });
        thread::spawn(move || {
            drop(io::copy(&mut from_far, &mut to_near));
            drop(to_near.shutdown(Shutdown::Write));
        });
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        drop(self.cut());
        // Wakes the listener
        drop(self.netns.connect(self.at, TIMEOUT));
    }
}
