//! Serves gRPC on a unix socket until told to stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::UnixListener;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

use super::authority::AnyAuthority;
use super::layer::{RpcLayer, RpcMetrics};

/// How long calls may go on after the shutdown began. A container runtime kills after 30 s, systemd after 90 s.
const GRACE: Duration = Duration::from_secs(8);

/// Serves until `shutdown` is cancelled; then running calls may finish for eight seconds, and what is left, such as a
/// stream whose client stays, is cut. Removes the socket file.
pub async fn serve(
    listener: UnixListener,
    routes: Routes,
    metrics: &RpcMetrics,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(unhidden));
    let connections = UnixListenerStream::new(listener).map(|connection| connection.map(AnyAuthority::new));
    let serving = Server::builder()
        .layer(RpcLayer(Arc::new(metrics.clone())))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let result = tokio::select! {
        result = serving => result.context("serving gRPC"),
        () = async { shutdown.cancelled().await; tokio::time::sleep(GRACE).await } => {
            tracing::warn!("some calls did not finish in time and were cut");
            Ok(())
        }
    };
    if let Some(path) = path {
        drop(std::fs::remove_file(path));
    }
    result
}

/// The socket was bound under a name with a leading dot and renamed; see [`crate::unix::listen`].
fn unhidden(path: &std::path::Path) -> std::path::PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(name.strip_prefix('.').unwrap_or(&name))
}
