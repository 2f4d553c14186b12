//! The routes of the page.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::middleware::from_fn;
use axum::routing::get;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use topolvm_runtime::listen::{ListenAddress, ListenError};
use topolvm_runtime::{CancellationToken, admin};

use crate::access;
use crate::changes::Changes;
use crate::cluster::{Cluster, Snapshot};
use crate::files::FILES;
use crate::node_storage;
use crate::query::{VolumeQuery, repeated};
use crate::summary::summarize;
use crate::usage::{MOST_VOLUMES, Usage, UsageAnswer};
use crate::volumes::find_volumes;

/// Connections of a few browsers; each has six at most.
const MOST_CONNECTIONS: usize = 64;

/// The web page. Clones share it.
#[derive(Clone, Debug)]
pub struct WebPage {
    cluster: Cluster,
    usage: Arc<Usage>,
    shutdown: CancellationToken,
}

impl WebPage {
    /// Makes the page of a cluster. Its streams end when `shutdown` is cancelled.
    #[must_use]
    pub fn new(cluster: Cluster, shutdown: CancellationToken) -> Self {
        let usage = Arc::new(Usage::new(cluster.client.clone(), &cluster.namespace));
        Self { cluster, usage, shutdown }
    }

    /// Returns the routes.
    pub fn router(&self) -> Router {
        let mut router = Router::new()
            .route("/api/summary", get(summary))
            .route("/api/volumes", get(volumes))
            .route("/api/usage", get(usage))
            .route("/api/storage", get(storage))
            .route("/api/events", get(events));
        for file in &FILES {
            router = router.route(file.path, get(|| async { file.response() }));
        }
        router.layer(from_fn(access::check)).with_state(self.clone())
    }

    /// Serves the page until the shutdown.
    pub async fn serve(self, address: &ListenAddress) -> Result<(), ListenError> {
        admin::serve_on(address, MOST_CONNECTIONS, self.router(), self.shutdown.clone()).await
    }

    /// Computes an answer from the objects as they are now, in a separate thread: the other work of the process
    /// continues meanwhile.
    async fn answer(&self, make: impl FnOnce(&Snapshot) -> Response<Body> + Send + 'static) -> Response<Body> {
        let cluster = self.cluster.clone();
        let computing = tokio::task::spawn_blocking(move || make(&cluster.snapshot()));
        computing.await.unwrap_or_else(|_| error(StatusCode::INTERNAL_SERVER_ERROR, "the process ends".to_owned()))
    }
}

async fn summary(State(page): State<WebPage>) -> Response<Body> {
    page.answer(|snapshot| json(&summarize(snapshot))).await
}

async fn volumes(State(page): State<WebPage>, RawQuery(query): RawQuery) -> Response<Body> {
    match VolumeQuery::parse(&query.unwrap_or_default()) {
        Ok(query) => page.answer(move |snapshot| json(&find_volumes(snapshot, &query))).await,
        Err(refused) => error(StatusCode::BAD_REQUEST, refused.to_string()),
    }
}

async fn usage(State(page): State<WebPage>, RawQuery(query): RawQuery) -> Response<Body> {
    let names = repeated(&query.unwrap_or_default(), "volume", MOST_VOLUMES);
    let volumes = names.iter().filter_map(|name| page.cluster.volumes.get(name));
    let placed = volumes.map(|volume| (volume.name().to_owned(), volume.spec.node_name.clone())).collect();
    let answer: UsageAnswer = page.usage.of_volumes(placed, (page.cluster.now)()).await;
    json(&answer)
}

async fn storage(State(page): State<WebPage>, RawQuery(query): RawQuery) -> Response<Body> {
    let Some(node) = repeated(&query.unwrap_or_default(), "node", 1).pop().filter(|node| !node.is_empty()) else {
        return error(StatusCode::BAD_REQUEST, "node must be the name of a node".to_owned());
    };
    json(&node_storage::read(page.cluster.client.clone(), page.cluster.flavor, &node).await)
}

async fn events(State(page): State<WebPage>) -> Response<Body> {
    Changes::subscribe(&page.cluster, page.usage.view(), page.shutdown.clone()).response()
}

fn json(answer: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(answer) {
        Ok(text) => {
            let mut response = Response::new(Body::from(text));
            let value = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, value);
            response
        }
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure.to_string()),
    }
}

fn error(status: StatusCode, message: String) -> Response<Body> {
    let mut response = Response::new(Body::from(message + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
