//! The same server over TLS.

use std::io;
use std::sync::Arc;

use axum::Router;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::Limit;
use crate::listen::Listeners;

/// Serves a router over TLS until `shutdown` is cancelled. `config` says how TLS is spoken on the next connection; while it is `None`
/// connections are closed.
pub async fn serve(
    listeners: Listeners,
    limit: Limit,
    router: Router,
    config: impl Fn() -> Option<Arc<ServerConfig>>,
    shutdown: CancellationToken,
) {
    let handshake = |stream: TcpStream| {
        let config = config();
        async move {
            let config = config.ok_or_else(|| io::Error::other("there is no certificate to show yet"))?;
            TlsAcceptor::from(config).accept(stream).await
        }
    };
    super::serve(listeners, limit, router, handshake, shutdown).await;
}
