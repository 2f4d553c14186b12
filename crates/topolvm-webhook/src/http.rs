//! The HTTP interface that the API server calls.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use topolvm_runtime::error_chain;
use topolvm_runtime::http_server::{BodyError, read_body};

use crate::admission_review::{AdmissionRequest, Decision, MutateError, Object, Resource, ReviewError};
use crate::claim::ClaimWebhook;
use crate::metrics::{Outcome, WebhookMetrics};
use crate::pod::PodWebhook;

/// The longest body. kube-apiserver takes requests of 3 MiB and etcd objects of 1.5 MiB. In a review about a creation
/// there is the new object, and no old one, as JSON: longer than the protobuf that is stored, with a multiple of that
/// where Go escapes much of it.
const LONGEST_BODY: usize = 8 << 20;
/// The longest body that is read at once and parsed in the thread that also serves CSI: it takes less than a
/// millisecond. Hardly any pod is as large.
const SMALL_BODY: usize = 64 << 10;
/// Longer bodies that are in memory at the same time.
pub(crate) const LARGE_BODIES: usize = 4;
/// Timeout from the head of the request to the answer: less than the 10 s of `timeoutSeconds`, so that the client that
/// creates the object gets the reason.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// The most bytes of a message about a body, which may be in it whole.
const LONGEST_MESSAGE: usize = 300;

/// The webhooks behind the HTTP interface.
#[derive(Clone)]
pub(crate) struct Hooks {
    pub(crate) pods: PodWebhook,
    pub(crate) claims: ClaimWebhook,
    pub(crate) metrics: WebhookMetrics,
    /// Permits for long bodies, [`LARGE_BODIES`] of them.
    pub(crate) bodies: Arc<Semaphore>,
}

/// `/pod/mutate` and `/pvc/mutate`.
pub(crate) fn router(hooks: Hooks) -> Router {
    Router::new().route("/pod/mutate", post(pod)).route("/pvc/mutate", post(claim)).with_state(Arc::new(hooks))
}

async fn pod(State(hooks): State<Arc<Hooks>>, request: Request) -> Response {
    hooks.answer(Resource::Pods, request).await
}

async fn claim(State(hooks): State<Arc<Hooks>>, request: Request) -> Response {
    hooks.answer(Resource::Claims, request).await
}

/// A request that gets no AdmissionReview as the answer.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("the request body did not arrive in time")]
    Slow,
    #[error("too many long requests are being read; try again")]
    Busy,
    #[error(transparent)]
    Review(#[from] ReviewError),
    #[error(transparent)]
    Incomplete(MutateError),
    #[error("reading the request body failed")]
    Panic(#[from] tokio::task::JoinError),
    #[error("cannot write the response")]
    Answer(#[from] serde_json::Error),
}

impl Refusal {
    /// Returns the status of the response, and the outcome for the metrics.
    fn status_and_outcome(&self) -> (StatusCode, Outcome) {
        match self {
            Self::Body(BodyError::TooLong(_)) => (StatusCode::PAYLOAD_TOO_LARGE, Outcome::Malformed),
            Self::Slow => (StatusCode::REQUEST_TIMEOUT, Outcome::Malformed),
            Self::Body(BodyError::Broken) | Self::Review(_) | Self::Incomplete(_) => {
                (StatusCode::BAD_REQUEST, Outcome::Malformed)
            }
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, Outcome::Failed),
            Self::Panic(_) | Self::Answer(_) => (StatusCode::INTERNAL_SERVER_ERROR, Outcome::Failed),
        }
    }
}

impl Hooks {
    async fn answer(&self, resource: Resource, request: Request) -> Response {
        let began = Instant::now();
        let (outcome, response) = match self.review(resource, request, began + ANSWER_TIMEOUT).await {
            Ok((outcome, json)) => {
                (outcome, ([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response())
            }
            Err(refusal) => {
                let (status, outcome) = refusal.status_and_outcome();
                let mut error = error_chain(&refusal);
                error.truncate(error.floor_char_boundary(LONGEST_MESSAGE));
                tracing::warn!(plural = resource.plural(), %status, error, "cannot answer an admission request");
                (outcome, (status, error).into_response())
            }
        };
        let webhook = match resource {
            Resource::Pods => "pod",
            Resource::Claims => "pvc",
        };
        self.metrics.count(webhook, outcome, began.elapsed());
        response
    }

    /// Reads and parses the request in a body. The body is not kept.
    async fn read_request(
        &self,
        resource: Resource,
        body: Body,
        deadline: Instant,
    ) -> Result<AdmissionRequest, Refusal> {
        let is_small = body
            .size_hint()
            .upper()
            .is_some_and(|length| usize::try_from(length).is_ok_and(|length| length <= SMALL_BODY));
        if is_small {
            let body = timeout_at(deadline, read_body(body, SMALL_BODY)).await.map_err(|_| Refusal::Slow)??;
            return Ok(AdmissionRequest::parse(&body, resource)?);
        }
        let permit = timeout_at(deadline, Arc::clone(&self.bodies).acquire_owned()).await;
        // Never closed, so that there is a permit in time or none
        let Ok(Ok(permit)) = permit else { return Err(Refusal::Busy) };
        let body = timeout_at(deadline, read_body(body, LONGEST_BODY)).await.map_err(|_| Refusal::Slow)??;
        let request = tokio::task::spawn_blocking(move || {
            let request = AdmissionRequest::parse(&body, resource);
            drop((body, permit));
            request
        });
        Ok(request.await??)
    }

    /// Decides about the object of a request, and returns a warning for the user if there is one.
    async fn decide(&self, request: &AdmissionRequest) -> Result<(Decision, Option<String>), MutateError> {
        match &request.object {
            None => Ok((Decision::Unchanged, None)),
            Some(Object::Pod(pod)) => self.pods.mutate(&request.namespace, pod, request.is_dry_run).await,
            Some(Object::Claim(claim)) => Ok((self.claims.mutate(claim).await?, None)),
        }
    }

    /// Answers a review with a decision, and with its outcome for the metrics.
    async fn review(
        &self,
        resource: Resource,
        request: Request,
        deadline: Instant,
    ) -> Result<(Outcome, Vec<u8>), Refusal> {
        let request = self.read_request(resource, request.into_body(), deadline).await?;
        let decision = timeout_at(deadline, self.decide(&request)).await.unwrap_or(Err(MutateError::Late));
        let (plural, namespace, name) = (resource.plural(), &request.namespace, &request.name);
        match decision {
            Err(error @ MutateError::Incomplete(_)) => Err(Refusal::Incomplete(error)),
            Err(error @ (MutateError::Kube(_) | MutateError::Late)) => {
                let error = format!("topolvm: {}", error_chain(&error));
                let remedy = "the request is rejected; check the load of the API server and the controller's rights";
                tracing::warn!(plural, namespace, name, error, "{remedy}");
                Ok((Outcome::Failed, request.respond(Err(&error), None)?))
            }
            Ok((decision, warning)) => {
                if let Some(warning) = &warning {
                    tracing::warn!(plural, namespace, name, "{warning}");
                }
                let outcome = match decision {
                    Decision::Unchanged => Outcome::Unchanged,
                    Decision::Patched(_) => Outcome::Patched,
                    Decision::Denied(_) => Outcome::Denied,
                };
                Ok((outcome, request.respond(Ok(&decision), warning.as_deref())?))
            }
        }
    }
}
