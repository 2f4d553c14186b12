//! Serves gRPC on a unix socket until it is stopped.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::layer_fn;

use super::authority::AnyAuthority;
use super::layer::{RpcMetrics, observed};
use crate::unix::Listener;

/// Timeout of calls after the shutdown began. A container runtime kills after 30 s, systemd after 90 s.
const GRACE: Duration = Duration::from_secs(8);

/// Serves until `shutdown` is cancelled; then running calls may finish for eight seconds, and what is left, such as a
/// stream whose client stays, is cut. Removes the socket file. Clients may send any `:authority`, also a path.
pub async fn serve(
    listener: Listener,
    routes: Routes,
    metrics: &RpcMetrics,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let path = listener.path().to_owned();
    let bound = listener.bound();
    let connections = listener.connections().map(|connection| connection.map(AnyAuthority::new));
    let serving = Server::builder()
        .layer(layer_fn(|service: Routes| observed(service, metrics)))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let result = tokio::select! {
        result = serving => result.context("serving gRPC"),
        () = async { shutdown.cancelled().await; tokio::time::sleep(GRACE).await } => {
            tracing::warn!("some calls did not finish in time and were aborted");
            Ok(())
        }
    };
    // While the last calls finished a successor may have put its own socket there
    if bound.is_at(&path) {
        drop(std::fs::remove_file(path));
    }
    result
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn socket_is_removed_with_its_server_unless_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        for has_successor in [false, true] {
            let listener = crate::unix::listen(&path).await.unwrap();
            let shutdown = CancellationToken::new();
            let metrics = RpcMetrics::register(&mut Registry::default());
            let serving = serve(listener, Routes::default(), &metrics, shutdown.clone());
            tokio::pin!(serving);
            assert!(futures::poll!(&mut serving).is_pending());
            if has_successor {
                let successor = dir.path().join("successor");
                std::fs::write(&successor, "").unwrap();
                std::fs::rename(&successor, &path).unwrap();
            }
            shutdown.cancel();
            serving.await.unwrap();
            assert_eq!(path.exists(), has_successor);
        }
    }
}
