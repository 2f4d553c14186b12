//! Lists the objects that the controller watches, in pages and all kinds at once, without a use for them: the limit of
//! the API server for a start.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use http::Request;
use kube::Client;
use serde::Deserialize;

const PATHS: [&str; 6] = [
    "/api/v1/nodes",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csistoragecapacities",
    "/apis/topolvm.io/v1/logicalvolumes",
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
];

/// A page of a list without its objects.
#[derive(Deserialize)]
struct Page {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "continue", default)]
    next: String,
}

/// Returns the time that the lists take.
pub(super) async fn time_lists(client: &Client) -> Result<Duration> {
    let start = Instant::now();
    try_join_all(PATHS.map(|path| list(client, path))).await?;
    Ok(start.elapsed())
}

async fn list(client: &Client, path: &str) -> Result<()> {
    let mut next = String::new();
    loop {
        let request = Request::get(format!("{path}?limit=500&continue={next}")).body(Vec::new())?;
        let page: Page = client.request(request).await.with_context(|| format!("list {path}"))?;
        next = page.metadata.next;
        if next.is_empty() {
            return Ok(());
        }
    }
}
