//! The HTTP side door: metrics for Prometheus and health for probes.

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long requests may go on after the shutdown began. A client that stops in the middle of a request, or a handler that
/// hangs, must not keep the process from ending.
const GRACE: Duration = Duration::from_secs(8);

/// Whether an address means "nowhere": it is empty or, as in programs made with controller-runtime, 0.
pub fn is_off(address: &str) -> bool {
    matches!(address, "" | "0")
}

/// Serves `/metrics` on `address` (`:8080` means every interface; [off](is_off) means not at all) until `shutdown` is cancelled.
pub async fn serve_metrics(address: &str, registry: Arc<Registry>, shutdown: CancellationToken) -> anyhow::Result<()> {
    serve(address, metrics_router(registry), shutdown).await
}

/// Serves a router on `address` (`:8081` means every interface; [off](is_off) means not at all) until `shutdown` is cancelled.
pub async fn serve(address: &str, router: Router, shutdown: CancellationToken) -> anyhow::Result<()> {
    if is_off(address) {
        shutdown.cancelled().await;
        return Ok(());
    }
    let listener = listen(address).await?;
    // Access logs name the peer
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        result = serving.into_future() => result.context("serving HTTP"),
        () = async { shutdown.cancelled().await; tokio::time::sleep(GRACE).await } => {
            tracing::warn!("some HTTP requests did not finish in time and were cut");
            Ok(())
        }
    }
}

/// Listens on an address; `:8081` means every interface.
pub async fn listen(address: &str) -> anyhow::Result<TcpListener> {
    let full =
        if address.starts_with(':') { format!("[::]:{}", address.trim_start_matches(':')) } else { address.into() };
    match TcpListener::bind(&full).await {
        // A kernel without IPv6
        Err(_) if address.starts_with(':') => TcpListener::bind(format!("0.0.0.0{address}")).await,
        bound => bound,
    }
    .with_context(|| format!("cannot listen on {address}; choose a free address with the flag or setting for it"))
}

/// `/metrics` in the text format of OpenMetrics.
pub fn metrics_router(registry: Arc<Registry>) -> Router {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Router::new().route(
        "/metrics",
        get(move || async move {
            let mut page = String::new();
            match prometheus_client::encoding::text::encode(&mut page, &registry) {
                Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], page),
                Err(error) => {
                    (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string())
                }
            }
        }),
    )
}

/// `/healthz` answers 200 while the process runs; `/readyz` when `ready` says so, else 503 with what it waits for.
pub fn health_router<F>(ready: F) -> Router
where
    F: Fn() -> Result<(), String> + Clone + Send + Sync + 'static,
{
    Router::new().route("/healthz", get(|| async { "ok" })).route(
        "/readyz",
        get(move || async move {
            match ready() {
                Ok(()) => (StatusCode::OK, "ok".to_owned()),
                Err(waiting_for) => (StatusCode::SERVICE_UNAVAILABLE, waiting_for),
            }
        }),
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;

    use super::*;

    #[rstest::rstest]
    #[case("")]
    #[case("0")]
    #[tokio::test]
    async fn an_address_that_means_off_is_served_nowhere_and_holds_nothing_up(#[case] off: &str) {
        let shutdown = CancellationToken::new();
        let serving = serve_metrics(off, Arc::new(Registry::default()), shutdown.clone());
        tokio::pin!(serving);
        assert!(futures::poll!(serving.as_mut()).is_pending());
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_hold_up_the_shutdown() {
        let entered = Arc::new(tokio::sync::Notify::new());
        let enter = Arc::clone(&entered);
        let hang = move || {
            enter.notify_one();
            std::future::pending::<()>()
        };
        let router = Router::new().route("/", get(hang));
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let shutdown = CancellationToken::new();
        let request = async {
            let mut client = loop {
                match TcpStream::connect(&free).await {
                    Ok(client) => break client,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            entered.notified().await;
            tokio::time::pause();
            shutdown.cancel();
            client
        };
        let (served, _client) = tokio::join!(serve(&free, router, shutdown.clone()), request);
        served.unwrap();
    }
}
