//! Serves a fake API server over HTTP, for programs.

use anyhow::Result;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use kube::Client;
use tokio::runtime::Runtime;
use topolvm_runtime::listen::ListenAddress;
use topolvm_runtime::{CancellationToken, admin};
use topolvm_testkit::ApiServer;

use super::free_address;

/// Longest body of a request.
const LONGEST: usize = 16 << 20;
/// Connections of a controller: one for each watch at most.
const MOST_CONNECTIONS: usize = 64;

/// Starts to serve it until `shutdown` is cancelled; returns its address.
pub(super) fn serve(runtime: &Runtime, api: &ApiServer, shutdown: &CancellationToken) -> Result<String> {
    let client = runtime.block_on(async { api.client() });
    let router = Router::new().fallback(move |request| forward(client.clone(), request));
    start(runtime, router, shutdown)
}

/// Starts to serve a router on a free port of this machine; returns its address.
pub(super) fn start(runtime: &Runtime, router: Router, shutdown: &CancellationToken) -> Result<String> {
    let text = free_address()?;
    let (address, shutdown) = (text.parse::<ListenAddress>()?, shutdown.clone());
    drop(runtime.spawn(async move { admin::serve_on(&address, MOST_CONNECTIONS, router, shutdown).await }));
    Ok(text)
}

async fn forward(client: Client, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let failed = |message: String| {
        let mut response = Response::new(Body::from(message));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    };
    let body = match to_bytes(body, LONGEST).await {
        Ok(body) => kube::client::Body::from(body.to_vec()),
        Err(error) => return failed(error.to_string()),
    };
    match client.send(Request::from_parts(parts, body)).await {
        Ok(response) => response.map(Body::new),
        Err(error) => failed(error.to_string()),
    }
}
