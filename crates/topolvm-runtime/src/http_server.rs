//! An HTTP server for a port that every client can reach, with a limit of connections and idle timeouts, so that none
//! keeps another one waiting.
//!
//! - A connection whose request has not arrived yet is closed after a deadline: first after [`FIRST_REQUEST`], with the
//!   TLS handshake in it, later after [`IDLE`].
//! - At the limit of connections, the one that has been without a request for longest is closed for the next one. Only
//!   if all are being answered does the next one wait.

mod body;
mod connections;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::listen::Listeners;

pub use body::{BodyError, read_body};
pub use connections::ConnectionMetrics;

use body::TrackedBody;
use connections::{Connection, Connections};

/// Timeout of the first request of a connection, the TLS handshake included.
pub const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Timeout of a connection without a request. Go's clients, as kube-apiserver and kube-scheduler, close theirs after 90
/// s: one that is closed here first could cost them a request that is on its way.
pub const IDLE: Duration = Duration::from_mins(2);
/// Timeout of requests after the shutdown began. A client that stops in the middle of a request, or a handler that
/// hangs, must not keep the process from ending.
const GRACE: Duration = Duration::from_secs(8);
/// Longest head of a request, and most that is buffered of a connection in either direction, in bytes.
const BUFFER: usize = 64 << 10;
/// Pause after a failure to accept a connection, because of too many open files as a rule.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// The limit of connections of a server, and their metrics.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Connections at most.
    pub connections: usize,
    /// Their metrics.
    pub metrics: ConnectionMetrics,
}

impl Limit {
    /// A limit of this many connections, without metrics.
    pub fn of(connections: usize) -> Self {
        Self { connections, metrics: ConnectionMetrics::default() }
    }
}

/// Serves a router until `shutdown` is cancelled, and then what has begun for 8 s at most. `handshake` makes of a TCP
/// connection one over which HTTP/1.1 is spoken. Handlers find the peer's address in `ConnectInfo<SocketAddr>`.
pub async fn serve<H, F, S>(
    mut listeners: Listeners,
    limit: Limit,
    router: Router,
    handshake: H,
    shutdown: CancellationToken,
) where
    H: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connections = Connections::new(limit.connections, limit.metrics);
    let mut tasks = JoinSet::new();
    let accepting = async {
        loop {
            let (stream, peer) = accept(&mut listeners).await;
            // Those for which there is no place meanwhile wait in the kernel
            let connection = Arc::new(connections.open().await);
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "serving a connection failed");
                }
            }
            tasks.spawn(serve_connection(handshake(stream), peer, connection, router.clone(), shutdown.clone()));
        }
    };
    let _: Option<()> = shutdown.run_until_cancelled(accepting).await;
    drop(listeners);
    let ended = tokio::time::timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!("some HTTP requests did not finish in time and were aborted");
    }
}

/// Accepts the next connection; returns its peer's address too.
async fn accept(listeners: &mut Listeners) -> (TcpStream, SocketAddr) {
    loop {
        match listeners.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
                if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
                    tracing::warn!(%error, "cannot accept a connection; check the limit of open files");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }
}

async fn serve_connection<S>(
    handshake: impl Future<Output = io::Result<S>>,
    peer: SocketAddr,
    connection: Arc<Connection>,
    router: Router,
    shutdown: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let serving = async {
        match shutdown.run_until_cancelled(handshake).await {
            Some(Ok(stream)) => serve_requests(stream, peer, &connection, &router, &shutdown).await,
            Some(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake of a connection failed"),
            None => {}
        }
    };
    tokio::select! {
        () = serving => {}
        () = connection.expired() => {}
    }
}

/// Serves the requests of a connection; after the shutdown began only the one that has begun.
async fn serve_requests<S>(
    stream: S,
    peer: SocketAddr,
    connection: &Arc<Connection>,
    router: &Router,
    shutdown: &CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| answer(request, peer, Arc::clone(connection), router.clone()));
    let serving = http1::Builder::new().max_buf_size(BUFFER).serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "a connection was interrupted");
    }
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    connection: Arc<Connection>,
    router: Router,
) -> Result<Response<Body>, Infallible> {
    connection.head_received();
    let mut request = request.map(|body| Body::new(TrackedBody::new(body, Arc::clone(&connection))));
    request.extensions_mut().insert(ConnectInfo(peer));
    let response = router.oneshot(request).await;
    connection.answered();
    response
}

#[cfg(test)]
mod tests;
