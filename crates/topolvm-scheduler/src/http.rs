//! The HTTP interface that kube-scheduler calls.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request as HttpRequest, StatusCode};
use topolvm_api::ApiFlavor;
use topolvm_runtime::error_chain;
use topolvm_runtime::http_server::{BodyError, read_body};

use crate::access_log;
use crate::config::Config;
use crate::extender::{self, Failure, HostPriority, Request, filter_result};
use crate::metrics::Metrics;
use crate::predicate::check_node;
use crate::prioritize::Scoring;

/// Timeout for the body of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

struct Extender {
    flavor: ApiFlavor,
    scoring: Scoring,
    max_request_bytes: usize,
    metrics: Metrics,
}

/// `/predicate`, `/prioritize` and `/status`, for any method.
pub fn router(flavor: ApiFlavor, config: &Config, metrics: Metrics) -> Router {
    let extender = Arc::new(Extender {
        flavor,
        scoring: config.scoring.clone(),
        max_request_bytes: config.max_request_bytes,
        metrics: metrics.clone(),
    });
    Router::new()
        .route("/predicate", any(predicate))
        .route("/prioritize", any(prioritize))
        .route("/status", any(|| async { "ok" }))
        .fallback(|| async { reply(StatusCode::NOT_FOUND, TEXT, "not found") })
        .layer(from_fn_with_state(metrics, access_log::log))
        .with_state(extender)
}

async fn predicate(State(extender): State<Arc<Extender>>, request: HttpRequest<Body>) -> Response {
    extender.answer(request, "bad request", Extender::filter).await
}

async fn prioritize(State(extender): State<Arc<Extender>>, request: HttpRequest<Body>) -> Response {
    extender.answer(request, "Bad Request.", Extender::prioritize).await
}

impl Extender {
    async fn answer(
        self: Arc<Self>,
        request: HttpRequest<Body>,
        bad_request: &'static str,
        answer: fn(&Self, &Bytes) -> Result<Response, extender::Error>,
    ) -> Response {
        let read = tokio::time::timeout(READ_TIMEOUT, read_body(request.into_body(), self.max_request_bytes)).await;
        let body = match read {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return refuse(&error, bad_request),
            Err(_) => return reply(StatusCode::REQUEST_TIMEOUT, TEXT, "the request did not arrive within 30 s"),
        };
        // A big cluster's nodes take a while to read; probes and the other requests go on meanwhile
        let answered = tokio::task::spawn_blocking(move || answer(&self, &body)).await;
        match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                tracing::warn!(error = error_chain(&error), "request cannot be answered");
                reply(StatusCode::BAD_REQUEST, TEXT, bad_request)
            }
            Err(error) => {
                tracing::error!(%error, "answering a request failed");
                reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "internal error")
            }
        }
    }

    fn filter(&self, body: &Bytes) -> Result<Response, extender::Error> {
        let request = match Request::parse(self.flavor, body) {
            Ok(request) => request,
            // Of other answers than 200 kube-scheduler shows the status only
            Err(error @ extender::Error::NamesOnly) => {
                tracing::error!("{error}");
                let failure = serde_json::to_string(&Failure { error: error.to_string() })?;
                return Ok(reply(StatusCode::OK, JSON, failure));
            }
            Err(error) => return Err(error),
        };
        let mut failed = BTreeMap::new();
        let mut kept = Vec::with_capacity(request.nodes.len());
        for node in &request.nodes {
            let verdict = check_node(&node.capacity, &request.requested);
            self.metrics.count_verdict(&verdict);
            match verdict {
                Ok(()) => kept.push(node),
                Err(reason) => drop(failed.insert(node.name.clone(), reason.to_string())),
            }
        }
        Ok(reply_parts(filter_result(body, &request, &kept, &failed)?))
    }

    fn prioritize(&self, body: &Bytes) -> Result<Response, extender::Error> {
        let request = Request::parse(self.flavor, body)?;
        let scores = (!request.requested.is_empty()).then(|| {
            let score = |capacity| self.scoring.score_node(capacity, &request.requested);
            let nodes = request.nodes.iter();
            nodes.map(|node| HostPriority { host: node.name.clone(), score: score(&node.capacity) }).collect::<Vec<_>>()
        });
        Ok(reply(StatusCode::OK, JSON, serde_json::to_string(&scores)?))
    }
}

/// Returns the answer to a request whose body could not be read.
fn refuse(error: &BodyError, bad_request: &'static str) -> Response {
    match error {
        BodyError::Broken => reply(StatusCode::BAD_REQUEST, TEXT, bad_request),
        BodyError::TooLong(limit) => {
            let message = format!("the request is longer than {} MiB; raise max-request-mib", limit >> 20);
            tracing::error!("{message}");
            reply(StatusCode::PAYLOAD_TOO_LARGE, TEXT, message)
        }
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// An answer whose parts are sent one after the other, without a copy of the whole.
fn reply_parts(parts: Vec<Bytes>) -> Response {
    let length: usize = parts.iter().map(Bytes::len).sum();
    let parts = futures::stream::iter(parts.into_iter().map(Ok::<_, Infallible>));
    let mut response = reply(StatusCode::OK, JSON, Body::from_stream(parts));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
}
