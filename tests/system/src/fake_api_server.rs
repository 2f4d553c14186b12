//! Serves a fake API server over HTTP, for programs.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use kube::Client;
use serde_json::json;
use tokio::runtime::Runtime;
use topolvm_runtime::listen::ListenAddress;
use topolvm_runtime::{CancellationToken, admin};
use topolvm_testkit::ApiServer;

/// Longest body of a request.
const LONGEST: usize = 16 << 20;
/// Connections of a controller: one for each watch at most.
const MOST_CONNECTIONS: usize = 64;

/// Starts to serve it until `shutdown` is cancelled; returns its address.
pub fn serve(runtime: &Runtime, api: &ApiServer, shutdown: &CancellationToken) -> Result<String> {
    let client = runtime.block_on(async { api.client() });
    let router = Router::new().fallback(move |request| forward(client.clone(), request));
    start(runtime, router, shutdown)
}

/// Starts to serve a router on a free port of this machine; returns its address.
pub(crate) fn start(runtime: &Runtime, router: Router, shutdown: &CancellationToken) -> Result<String> {
    let text = free_address()?;
    let (address, shutdown) = (text.parse::<ListenAddress>()?, shutdown.clone());
    drop(runtime.spawn(async move { admin::serve_on(&address, MOST_CONNECTIONS, router, shutdown).await }));
    Ok(text)
}

/// Writes a kubeconfig for the server at an address.
pub fn write_kubeconfig(path: &Path, address: &str) -> Result<()> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "clusters": [{"name": "fake", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "fake", "user": {}}],
    });
    std::fs::write(path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

/// Returns a free address of this machine.
pub(crate) fn free_address() -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("ask for the free port")?.to_string())
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
