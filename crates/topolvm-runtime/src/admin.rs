//! Plain HTTP servers for metrics and for the health of a process.

use std::future::ready;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio_util::sync::CancellationToken;

use crate::http_server::{self, Limit};
use crate::listen::{Listen, ListenAddress, ListenError};
use crate::{Backoff, MetricsPage, error_chain};

/// Connections of probes and of those who collect metrics: a few, each with one request at a time.
pub const MOST_CONNECTIONS: usize = 32;

/// Serves `/metrics` in plain text until `shutdown` is cancelled.
pub async fn serve_metrics(
    address: Listen,
    page: impl Into<MetricsPage>,
    shutdown: CancellationToken,
) -> Result<(), ListenError> {
    serve(address, metrics_router(page), shutdown).await
}

/// Back-off after a port could not be served.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Serves a router for probes or metrics like [`serve`], for a process that works without them: if the port is taken,
/// tries again, and logs `advice`.
pub async fn keep_serving(
    address: Listen,
    router: Router,
    advice: &'static str,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut backoff = RETRY;
    let mut last = String::new();
    while let Err(error) = serve(address.clone(), router.clone(), shutdown.clone()).await {
        let error = error_chain(&error);
        if last != error {
            tracing::error!(error, "{advice}");
            last = error;
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(backoff.fail())).await.is_none() {
            break;
        }
    }
    Ok(())
}

/// Serves a router for probes or metrics in plain text until `shutdown` is cancelled.
pub async fn serve(address: Listen, router: Router, shutdown: CancellationToken) -> Result<(), ListenError> {
    match address {
        Listen::Off => {
            shutdown.cancelled().await;
            Ok(())
        }
        Listen::On(address) => serve_on(&address, MOST_CONNECTIONS, router, shutdown).await,
    }
}

/// Serves a router in plain text, with so many connections at most, until `shutdown` is cancelled.
pub async fn serve_on(
    address: &ListenAddress,
    connections: usize,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), ListenError> {
    let listeners = address.listen().await?;
    let plain = |stream| ready(Ok(stream));
    http_server::serve(listeners, Limit::of(connections), router, plain, shutdown).await;
    Ok(())
}

/// A router that serves `/metrics` in the text format of OpenMetrics.
pub fn metrics_router(page: impl Into<MetricsPage>) -> Router {
    let page = page.into();
    Router::new().route("/metrics", get(move || answer_with(page.clone())))
}

async fn answer_with(page: MetricsPage) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match page.render().await {
        Ok(page) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], page),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

/// A router for probes: `/healthz` answers 200 while the process runs; `/readyz` answers 200 if `ready` succeeds, else
/// 503 with the missing condition.
pub fn health_router<F, A>(ready: F) -> Router
where
    F: Fn() -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<(), String>> + Send,
{
    Router::new().route("/healthz", get(|| async { "ok" })).route(
        "/readyz",
        get(move || async move {
            match ready().await {
                Ok(()) => (StatusCode::OK, "ok".to_owned()),
                Err(waiting_for) => (StatusCode::SERVICE_UNAVAILABLE, waiting_for),
            }
        }),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus_client::registry::Registry;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpStream;

    use super::*;

    #[rstest::rstest]
    #[case("")]
    #[case("0")]
    #[tokio::test]
    async fn disabled_metrics_address_serves_nothing_and_stops(#[case] off: &str) {
        let shutdown = CancellationToken::new();
        let serving = serve_metrics(off.parse().unwrap(), Arc::new(Registry::default()), shutdown.clone());
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
        let (served, _client) = tokio::join!(serve(free.parse().unwrap(), router, shutdown.clone()), request);
        served.unwrap();
    }
}
