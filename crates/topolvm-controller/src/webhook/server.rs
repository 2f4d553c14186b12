//! The HTTPS server.

use axum::Router;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::http_server::{ConnectionMetrics, Limit, tls};
use topolvm_runtime::listen::{ListenAddress, ListenError};

use super::client_authorities::TlsConfig;

/// Connections at most. kube-apiserver opens one for each question that it asks at the same time, and keeps 25 of them; more than these
/// are answered after each other.
const MOST_CONNECTIONS: usize = 256;

/// Serves on `address` until `shutdown` is cancelled.
pub(super) async fn serve(
    address: &ListenAddress,
    router: Router,
    config: TlsConfig,
    metrics: ConnectionMetrics,
    shutdown: CancellationToken,
) -> Result<(), ListenError> {
    let listeners = address.listen().await?;
    for address in listeners.addresses() {
        tracing::info!(%address, "serving webhooks");
    }
    let limit = Limit { connections: MOST_CONNECTIONS, metrics };
    tls::serve(listeners, limit, router, move || config.current(), shutdown).await;
    Ok(())
}
