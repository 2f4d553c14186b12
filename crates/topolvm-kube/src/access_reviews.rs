//! Authorization of HTTP requests by the API server: TokenReview identifies the user of a token, SubjectAccessReview
//! decides about the permissions of that user.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use topolvm_runtime::authorized_server::{Authorization, Authorizer};

/// Time for which an allowed request is cached. Prometheus comes every half minute, and all nodes ask the same API
/// server. A right that is taken away ends this much later.
const CACHED: Duration = Duration::from_mins(1);
/// The most allowed requests that are cached.
const CACHE_CAPACITY: usize = 256;
/// Timeout of each review. Prometheus itself waits for 10 s.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Error of asking the API server who may get something.
#[derive(Debug, thiserror::Error)]
pub enum AccessReviewError {
    /// It refuses, or cannot be reached.
    #[error(
        "the API server did not review the token; the service account needs the right to create tokenreviews and \
         subjectaccessreviews"
    )]
    Api(#[from] kube::Error),
    /// It takes too long.
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    Slow(#[from] tokio::time::error::Elapsed),
}

/// Token, verb and path.
type AccessRequest = (String, String, String);

/// Reviews by the API server, with a cache of what was allowed. What was refused is reviewed each time, so that a new
/// right counts at once.
pub struct AccessReviews {
    client: Client,
    /// Audience of further tokens that are taken.
    audience: Option<&'static str>,
    allowed_until: Mutex<HashMap<AccessRequest, Instant>>,
}

impl std::fmt::Debug for AccessReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client has no debug form, and tokens are not to be shown
        f.debug_struct("AccessReviews").finish_non_exhaustive()
    }
}

impl AccessReviews {
    /// Reviews with an empty cache.
    pub fn new(client: Client) -> Self {
        Self { client, audience: None, allowed_until: Mutex::default() }
    }

    /// Also takes tokens of this audience, which the API server itself does not take.
    #[must_use]
    pub fn taking_audience(self, audience: &'static str) -> Self {
        Self { audience: Some(audience), ..self }
    }

    /// Returns the user whose token this is.
    async fn authenticate(&self, token: &str) -> Result<Option<UserInfo>, kube::Error> {
        match (self.review_token(token, None).await?, self.audience) {
            (None, Some(audience)) => self.review_token(token, Some(audience)).await,
            (user, _) => Ok(user),
        }
    }

    /// Returns the user whose token of this audience it is; without one, of that of the API server.
    async fn review_token(&self, token: &str, audience: Option<&str>) -> Result<Option<UserInfo>, kube::Error> {
        let audiences = audience.map(|audience| vec![audience.to_owned()]);
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        // An authenticator that knows no audiences names none
        let named = status.audiences.unwrap_or_default();
        let is_meant = audience.is_none_or(|audience| named.iter().any(|named| named == audience));
        Ok(status.user.filter(|_| status.authenticated == Some(true) && is_meant))
    }

    async fn review_access(&self, user: UserInfo, verb: &str, path: &str) -> Result<Authorization, kube::Error> {
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
        Ok(if is_allowed { Authorization::Allowed } else { Authorization::Forbidden(name) })
    }
}

impl Authorizer for AccessReviews {
    type Error = AccessReviewError;

    async fn authorize(&self, token: &str, verb: &str, path: &str) -> Result<Authorization, AccessReviewError> {
        let request = (token.to_owned(), verb.to_owned(), path.to_owned());
        let now = Instant::now();
        if self.allowed_until.lock().get(&request).is_some_and(|until| *until > now) {
            return Ok(Authorization::Allowed);
        }
        let Some(user) = timeout(TIMEOUT, self.authenticate(token)).await?? else {
            return Ok(Authorization::Unauthenticated);
        };
        let authorization = timeout(TIMEOUT, self.review_access(user, verb, path)).await??;
        if authorization == Authorization::Allowed {
            let mut allowed = self.allowed_until.lock();
            allowed.retain(|_, until| *until > now);
            if allowed.len() < CACHE_CAPACITY {
                allowed.insert(request, now + CACHED);
            }
        }
        Ok(authorization)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_testkit::ApiServer;
    use topolvm_testkit::api_server::Failure;

    use super::*;

    const SCRAPER: &str = "system:serviceaccount:monitoring:prometheus";
    const STRANGER: &str = "system:serviceaccount:default:default";

    /// An API server that knows two tokens, one of a user who may get the metrics.
    fn api_server() -> ApiServer {
        let api = ApiServer::new();
        api.add_token("scraper", SCRAPER);
        api.add_token("stranger", STRANGER);
        api.allow(SCRAPER, "get", "/metrics");
        api
    }

    async fn authorize(reviews: &AccessReviews, token: &str) -> Authorization {
        reviews.authorize(token, "get", "/metrics").await.unwrap()
    }

    #[rstest]
    #[case::unknown("made-up", Authorization::Unauthenticated)]
    #[case::without_the_right("stranger", Authorization::Forbidden(STRANGER.to_owned()))]
    #[case::with_the_right("scraper", Authorization::Allowed)]
    #[tokio::test]
    async fn the_metrics_are_for_those_whom_the_api_server_lets(#[case] token: &str, #[case] expected: Authorization) {
        assert_eq!(authorize(&AccessReviews::new(api_server().client()), token).await, expected);
    }

    #[rstest]
    #[case::unreachable("tokenreviews", Failure::Unreachable)]
    #[case::refuses_to_authenticate("tokenreviews", Failure::Status(403))]
    #[case::refuses_to_authorize("subjectaccessreviews", Failure::Status(403))]
    #[case::hangs_while_it_authenticates("tokenreviews", Failure::Hang)]
    #[case::hangs_while_it_authorizes("subjectaccessreviews", Failure::Hang)]
    #[tokio::test(start_paused = true)]
    async fn unavailable_api_server_authorizes_no_request(#[case] review: &str, #[case] failure: Failure) {
        let api = api_server();
        let hangs = matches!(failure, Failure::Hang);
        api.inject("create", review, 2, failure);
        let reviews = AccessReviews::new(api.client());
        for _ in 0..2 {
            let asking = timeout(TIMEOUT * 3, reviews.authorize("scraper", "get", "/metrics"));
            let error = asking.await.expect("it has a timeout").unwrap_err();
            assert_eq!(matches!(error, AccessReviewError::Slow(_)), hangs, "{error}");
        }
        assert_eq!(authorize(&reviews, "scraper").await, Authorization::Allowed, "it can be asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_server_is_asked_again_after_a_minute() {
        let api = api_server();
        let reviews = AccessReviews::new(api.client());
        for _ in 0..3 {
            assert_eq!(authorize(&reviews, "scraper").await, Authorization::Allowed);
        }
        assert_eq!(api.requests().len(), 2);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(authorize(&reviews, "scraper").await, Authorization::Allowed);
        assert_eq!(api.requests().len(), 4);
    }

    #[tokio::test]
    async fn a_token_of_another_audience_is_taken_where_it_is_meant_to_be() {
        let api = api_server();
        api.add_token_for("lister", SCRAPER, "lists");
        let reviews = || AccessReviews::new(api.client());
        assert_eq!(authorize(&reviews(), "lister").await, Authorization::Unauthenticated);
        assert_eq!(authorize(&reviews().taking_audience("other"), "lister").await, Authorization::Unauthenticated);
        let reviews = reviews().taking_audience("lists");
        assert_eq!(authorize(&reviews, "lister").await, Authorization::Allowed);
        assert_eq!(authorize(&reviews, "scraper").await, Authorization::Allowed);
        assert_eq!(authorize(&reviews, "made-up").await, Authorization::Unauthenticated);
    }

    #[tokio::test]
    async fn a_right_that_is_given_counts_at_once() {
        let api = api_server();
        let reviews = AccessReviews::new(api.client());
        assert_eq!(authorize(&reviews, "stranger").await, Authorization::Forbidden(STRANGER.to_owned()));
        api.allow(STRANGER, "get", "/metrics");
        assert_eq!(authorize(&reviews, "stranger").await, Authorization::Allowed);
    }
}
