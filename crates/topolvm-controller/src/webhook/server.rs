//! The HTTPS server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use topolvm_runtime::{CancellationToken, admin};

use super::certificate::Served;

/// How long calls may go on after the shutdown began.
const GRACE: Duration = Duration::from_secs(8);

/// Serves on `address` (`:9443` means every interface) until `shutdown` is cancelled.
pub(super) async fn serve(
    address: &str,
    router: Router,
    served: Served,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let listener = admin::listen(address).await?.into_std().context("cannot use the socket of the webhooks")?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving webhooks");
    }
    let config = RustlsConfig::from_config(Arc::new(served.config().context("cannot speak TLS")?));
    let handle = Handle::<SocketAddr>::new();
    let server = axum_server::from_tcp_rustls(listener, config)?.handle(handle.clone());
    let serving = server.serve(router.into_make_service());
    let stopping = async {
        shutdown.cancelled().await;
        handle.graceful_shutdown(Some(GRACE));
        // The server ends by itself then
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = serving => result.context("serving HTTPS"),
        () = stopping => Ok(()),
    }
}
