//! Access log: one line for each request.

use std::net::SocketAddr;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HOST, USER_AGENT};

use crate::metrics::Metrics;

/// Logs and measures a request. Field names are those that log pipelines in the field know.
pub(crate) async fn log(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (method, uri, version) = (request.method().clone(), request.uri().clone(), request.version());
    let host = text(request.headers(), &HOST);
    let user_agent = text(request.headers(), &USER_AGENT);
    let request_size = text(request.headers(), &CONTENT_LENGTH);
    let remote = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_string());
    let response = next.run(request).await;
    let (elapsed, status) = (started.elapsed(), response.status().as_u16());
    let exact_size = http_body::Body::size_hint(response.body()).exact();
    let response_size = exact_size.map_or_else(|| text(response.headers(), &CONTENT_LENGTH), |size| size.to_string());
    metrics.observe_request(uri.path(), status, elapsed.as_secs_f64());
    tracing::info!(
        r#type = "access",
        response_time = elapsed.as_secs_f64(),
        protocol = ?version,
        http_status_code = status,
        http_method = %method,
        url = %uri,
        http_host = host,
        request_size,
        response_size,
        remote_ipaddr = remote.unwrap_or_default(),
        http_user_agent = user_agent,
        "access"
    );
    response
}

fn text(headers: &HeaderMap, name: &http::HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
