//! Forwards a port on this machine's 127.0.0.1 to an address inside a network namespace.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::path::Path;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::netns::NetNs;

/// Listens in the namespace in which this program was started, writes the port to `port_file`, and forwards connections
/// to `to` inside `netns`, until the program is ended.
pub(crate) fn run(netns: &NetNs, to: SocketAddr, port_file: &Path) -> Result<()> {
    // A socket stays in the namespace in which it is created, so the listener is created before the thread moves.
    let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on 127.0.0.1")?;
    listener.set_nonblocking(true).context("set up the listener")?;
    let port = listener.local_addr().context("ask for the port")?.port();
    let temporary = port_file.with_extension("tmp");
    fs::write(&temporary, port.to_string())
        .and_then(|()| fs::rename(&temporary, port_file))
        .with_context(|| format!("write {}", port_file.display()))?;
    netns.enter(|| {
        // A single thread: another one would be in the wrong namespace.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("start tokio")?;
        runtime.block_on(accept(listener, to))
    })?
}

async fn accept(listener: StdTcpListener, to: SocketAddr) -> Result<()> {
    let listener = TcpListener::from_std(listener).context("set up the listener")?;
    let mut connections = JoinSet::new();
    loop {
        let (mut from, _) = listener.accept().await.context("accept a connection")?;
        connections.spawn(async move {
            let mut to = TcpStream::connect(to).await?;
            tokio::io::copy_bidirectional(&mut from, &mut to).await
        });
        // A connection that breaks is its client's problem.
        while connections.try_join_next().is_some() {}
    }
}
