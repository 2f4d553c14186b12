//! Who may see the metrics: whom the API server knows by the token and lets do what was asked for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout};

/// Prometheus comes every half minute, and all nodes ask the same API server. A right that is taken away ends this much later.
const REMEMBERED: Duration = Duration::from_mins(1);
/// As many callers are remembered.
const MOST: usize = 256;
/// Prometheus itself waits for 10 s.
const LIMIT: Duration = Duration::from_secs(5);

/// What the API server says of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Do it.
    Allowed,
    /// Nobody is known by this token.
    Unknown,
    /// This user may not.
    Forbidden(String),
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "the API server does not tell; the service account needs the right to create tokenreviews and subjectaccessreviews"
    )]
    Api(#[from] kube::Error),
    #[error("the API server did not answer within {} s", LIMIT.as_secs())]
    Slow(#[from] tokio::time::error::Elapsed),
}

/// Token, verb and path.
type Question = (String, String, String);

/// Asks the API server, and remembers for a while who may. Who may not is asked about each time, so that a new right counts at once.
pub(super) struct Access {
    client: Client,
    allowed_until: Mutex<HashMap<Question, Instant>>,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        Self { client, allowed_until: Mutex::default() }
    }

    /// Whether the holder of this token may do this to this path.
    pub(super) async fn decide(&self, token: &str, verb: &str, path: &str) -> Result<Verdict, Error> {
        let question = (token.to_owned(), verb.to_owned(), path.to_owned());
        let now = Instant::now();
        let known = |allowed: &HashMap<Question, Instant>| allowed.get(&question).is_some_and(|until| *until > now);
        if known(&self.allowed_until.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(Verdict::Allowed);
        }
        let verdict = match timeout(LIMIT, self.who(token)).await?? {
            None => return Ok(Verdict::Unknown),
            Some(user) => timeout(LIMIT, self.may(user, verb, path)).await??,
        };
        if verdict == Verdict::Allowed {
            let mut allowed = self.allowed_until.lock().unwrap_or_else(PoisonError::into_inner);
            allowed.retain(|_, until| *until > now);
            if allowed.len() < MOST {
                allowed.insert(question, now + REMEMBERED);
            }
        }
        Ok(verdict)
    }

    async fn who(&self, token: &str) -> Result<Option<UserInfo>, kube::Error> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        Ok(status.user.filter(|_| status.authenticated == Some(true)))
    }

    async fn may(&self, user: UserInfo, verb: &str, path: &str) -> Result<Verdict, kube::Error> {
        let name = user.username.clone().unwrap_or_default();
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(verb.to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let is_allowed = answer.status.is_some_and(|status| status.allowed && status.denied != Some(true));
        Ok(if is_allowed { Verdict::Allowed } else { Verdict::Forbidden(name) })
    }
}
