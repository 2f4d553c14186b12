//! The HTTP interface that the API server calls.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use tokio::time::{Instant, timeout};

use super::admission::{MutateError, Question, Verdict};
use super::claim::ClaimWebhook;
use super::metrics::{Outcome, WebhookMetrics};
use super::pod::PodWebhook;

/// An object has at most 3 MiB at the API server, and there is only the new one in a review about a creation.
const LARGEST_BODY: usize = 8 << 20;
/// How long the API server may take to send its question.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may take: less than the 10 s of `timeoutSeconds`, so that whoever creates the object is told why.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// What answers.
#[derive(Clone)]
pub(crate) struct Hooks {
    pub(crate) pods: PodWebhook,
    pub(crate) claims: ClaimWebhook,
    pub(crate) metrics: WebhookMetrics,
}

/// `/pod/mutate` and `/pvc/mutate`.
pub(crate) fn router(hooks: Hooks) -> Router {
    Router::new()
        .route("/pod/mutate", post(pod))
        .route("/pvc/mutate", post(claim))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(Arc::new(hooks))
}

async fn pod(State(hooks): State<Arc<Hooks>>, request: Request) -> Response {
    hooks.answer(Hook::Pod, request).await
}

async fn claim(State(hooks): State<Arc<Hooks>>, request: Request) -> Response {
    hooks.answer(Hook::Claim, request).await
}

/// Which webhook was called.
#[derive(Clone, Copy)]
enum Hook {
    Pod,
    Claim,
}

impl Hook {
    /// Its label in the metrics.
    fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Claim => "pvc",
        }
    }

    /// The resource that it is about.
    fn plural(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Claim => "persistentvolumeclaims",
        }
    }
}

impl Hooks {
    async fn answer(&self, hook: Hook, request: Request) -> Response {
        let began = Instant::now();
        let (outcome, response) = self.reviewed(hook, request).await;
        self.metrics.count(hook.name(), outcome, began.elapsed());
        response
    }

    async fn verdict(&self, hook: Hook, question: &Question) -> Result<Verdict, MutateError> {
        match (&question.object, hook) {
            (None, _) => Ok(Verdict::Unchanged),
            (Some(pod), Hook::Pod) => self.pods.mutate(question.namespace(), pod).await,
            (Some(claim), Hook::Claim) => self.claims.mutate(claim).await,
        }
    }

    async fn reviewed(&self, hook: Hook, request: Request) -> (Outcome, Response) {
        let body = match timeout(READ_TIMEOUT, Bytes::from_request(request, &())).await {
            Ok(Ok(body)) => body,
            Ok(Err(refused)) => return (Outcome::Malformed, refused.into_response()),
            Err(_) => return (Outcome::Malformed, StatusCode::REQUEST_TIMEOUT.into_response()),
        };
        let plural = hook.plural();
        let question = match Question::read(&body, plural) {
            Ok(question) => question,
            Err(error) => return malformed(plural, error),
        };
        let verdict = timeout(ANSWER_TIMEOUT, self.verdict(hook, &question)).await.unwrap_or(Err(MutateError::Late));
        let (outcome, review) = match verdict {
            Err(error @ (MutateError::Malformed(_) | MutateError::Incomplete(_))) => {
                return malformed(plural, error);
            }
            Err(error @ (MutateError::Kube(_) | MutateError::Late)) => {
                let why = format!("topolvm: {:#}", anyhow::Error::from(error));
                let (namespace, name) = (question.namespace(), &question.request.name);
                tracing::warn!(
                    plural,
                    namespace,
                    name,
                    error = why,
                    "a creation is refused; check the API server's load and our rights"
                );
                (Outcome::Failed, question.answer(Err(&why)))
            }
            Ok(verdict) => {
                let outcome = match verdict {
                    Verdict::Unchanged => Outcome::Unchanged,
                    Verdict::Patched(_) => Outcome::Patched,
                    Verdict::Denied(_) => Outcome::Denied,
                };
                (outcome, question.answer(Ok(&verdict)))
            }
        };
        match review {
            Ok(json) => (outcome, ([(header::CONTENT_TYPE, "application/json")], Body::from(json)).into_response()),
            Err(error) => (Outcome::Failed, (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()),
        }
    }
}

fn malformed(plural: &'static str, error: impl Into<anyhow::Error>) -> (Outcome, Response) {
    let error = format!("{:#}", error.into());
    tracing::warn!(plural, error, "a request is no question about an object");
    (Outcome::Malformed, (StatusCode::BAD_REQUEST, error).into_response())
}
