//! The HTTP interface that kube-scheduler calls.

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
use topolvm_kube::Credentials;
use topolvm_runtime::error_chain;
use topolvm_runtime::http_server::{BodyError, read_body};

use crate::access_log;
use crate::answer::Answers;
use crate::config::Config;
use crate::extender::{Error, Failure, PreemptionRequest, Request};
use crate::metrics::Metrics;
use crate::node_cache::NodeCache;
use crate::reservations::Reservations;

/// Timeout for the body of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

struct Extender {
    flavor: ApiFlavor,
    max_request_bytes: usize,
    answers: Answers,
    credentials: Option<Credentials>,
}

/// Sources of the extender's state in addition to requests.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    /// Without it, requests with the names of Nodes alone cannot be answered.
    pub nodes: Option<NodeCache>,
    /// Without it, what nodes publish as free is taken for free.
    pub reservations: Option<Reservations>,
    /// The credentials with which both are watched.
    pub credentials: Option<Credentials>,
}

/// `/predicate`, `/prioritize`, `/preempt`, `/status` and `/readyz`, for any method.
pub fn router(flavor: ApiFlavor, config: &Config, watches: Watches, metrics: Metrics) -> Router {
    let Watches { nodes, reservations, credentials } = watches;
    let extender = Arc::new(Extender {
        flavor,
        max_request_bytes: config.max_request_bytes,
        answers: Answers { scoring: config.scoring.clone(), nodes, reservations, metrics: metrics.clone() },
        credentials,
    });
    Router::new()
        .route("/predicate", any(predicate))
        .route("/prioritize", any(prioritize))
        .route("/preempt", any(preempt))
        .route("/status", any(|| async { "ok" }))
        .route("/readyz", any(ready))
        .fallback(|| async { reply(StatusCode::NOT_FOUND, TEXT, "not found") })
        .layer(from_fn_with_state(metrics, access_log::log))
        .with_state(extender)
}

async fn predicate(State(extender): State<Arc<Extender>>, request: HttpRequest<Body>) -> Response {
    const BAD_REQUEST: &str = "bad request";
    let (body, request) = match extender.read(request, BAD_REQUEST).await {
        Ok(read) => read,
        Err(refusal) => return refusal,
    };
    match extender.answers.filter(&body, &request).await {
        Ok(parts) => reply_parts(parts),
        // Of other answers than 200 kube-scheduler shows the status only. After an error it tries again.
        Err(error @ (Error::NamesOnly | Error::NotListed | Error::ReservationsNotListed)) => {
            tracing::error!("{error}");
            match serde_json::to_string(&Failure { error: error.to_string() }) {
                Ok(failure) => reply(StatusCode::OK, JSON, failure),
                Err(error) => refuse_request(&error.into(), BAD_REQUEST),
            }
        }
        Err(error) => refuse_request(&error, BAD_REQUEST),
    }
}

async fn prioritize(State(extender): State<Arc<Extender>>, request: HttpRequest<Body>) -> Response {
    const BAD_REQUEST: &str = "Bad Request.";
    let (_, request) = match extender.read(request, BAD_REQUEST).await {
        Ok(read) => read,
        Err(refusal) => return refusal,
    };
    match extender.answers.prioritize(&request) {
        Ok(scores) => reply(StatusCode::OK, JSON, scores),
        Err(error) => refuse_request(&error, BAD_REQUEST),
    }
}

async fn preempt(State(extender): State<Arc<Extender>>, request: HttpRequest<Body>) -> Response {
    const BAD_REQUEST: &str = "bad request";
    let body = match extender.receive(request, BAD_REQUEST).await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let request = match PreemptionRequest::parse(extender.flavor, &body) {
        Ok(request) => request,
        Err(error) => return refuse_request(&error, BAD_REQUEST),
    };
    match serde_json::to_string(&extender.answers.preempt(&request).await) {
        Ok(answer) => reply(StatusCode::OK, JSON, answer),
        Err(error) => refuse_request(&error.into(), BAD_REQUEST),
    }
}

/// Answers 200 when requests can be answered, 503 before.
async fn ready(State(extender): State<Arc<Extender>>) -> Response {
    match extender.check_ready() {
        Ok(()) => reply(StatusCode::OK, TEXT, "ok"),
        Err(reason) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason),
    }
}

impl Extender {
    /// Checks that the watched objects have been listed and are still watched; the error names the missing ones.
    fn check_ready(&self) -> Result<(), String> {
        let credentials = self.credentials.as_ref().map_or(Ok(()), Credentials::check);
        credentials.map_err(|rejected| rejected.to_string())?;
        self.answers.check_ready().map_err(|error| error.to_string())
    }

    /// Reads a request; returns the answer to one that cannot be read as the error.
    async fn read(&self, request: HttpRequest<Body>, bad_request: &'static str) -> Result<(Bytes, Request), Response> {
        let body = self.receive(request, bad_request).await?;
        let (flavor, text) = (self.flavor, body.clone());
        // The Nodes of a big cluster take hundreds of milliseconds, in which probes and other requests are answered
        let parsed = tokio::task::spawn_blocking(move || Request::parse(flavor, &text)).await;
        match parsed {
            Ok(Ok(request)) => Ok((body, request)),
            Ok(Err(error)) => Err(refuse_request(&error, bad_request)),
            Err(_) => Err(reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "the process ends")),
        }
    }

    /// Receives the body of a request; returns the answer to one that does not arrive as the error.
    async fn receive(&self, request: HttpRequest<Body>, bad_request: &'static str) -> Result<Bytes, Response> {
        let reading = read_body(request.into_body(), self.max_request_bytes);
        match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) => Err(refuse_body(&error, bad_request)),
            Err(_) => Err(reply(StatusCode::REQUEST_TIMEOUT, TEXT, "the request did not arrive within 30 s")),
        }
    }
}

/// Returns the answer to a request that cannot be answered.
fn refuse_request(error: &Error, bad_request: &'static str) -> Response {
    tracing::warn!(error = error_chain(error), "cannot answer a request");
    match error {
        Error::NotListed | Error::ReservationsNotListed => {
            reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, error.to_string())
        }
        Error::Json(_) | Error::Incomplete | Error::NamesOnly => reply(StatusCode::BAD_REQUEST, TEXT, bad_request),
    }
}

/// Returns the answer to a request whose body could not be read.
fn refuse_body(error: &BodyError, bad_request: &'static str) -> Response {
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
