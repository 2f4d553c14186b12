//! TokenReview and SubjectAccessReview: authentication and authorization, answered and never stored.

use serde_json::{Value, json};

use super::ApiServer;
use super::kind::Kind;
use super::state::State;

/// The audience of tokens for the API server itself.
const API_AUDIENCE: &str = "https://kubernetes.default.svc";

impl ApiServer {
    /// Authenticates a token as this user from now on.
    pub fn add_token(&self, token: &str, user: &str) {
        self.add_token_for(token, user, API_AUDIENCE);
    }

    /// Authenticates a token as this user for this audience from now on.
    pub fn add_token_for(&self, token: &str, user: &str, audience: &str) {
        self.shared.lock().tokens.insert(token.to_owned(), (user.to_owned(), audience.to_owned()));
    }

    /// Authorizes a user for a verb on a path that is no resource, as `get` on `/metrics`.
    pub fn allow(&self, user: &str, verb: &str, path: &str) {
        self.shared.lock().grants.insert([user, verb, path].map(str::to_owned));
    }
}

/// Returns a review with its status; `None` for an object of another kind.
pub(super) fn review(state: &State, kind: &Kind, mut review: Value) -> Option<Value> {
    let spec = review["spec"].clone();
    review["status"] = match kind.qualified_plural().as_str() {
        "tokenreviews.authentication.k8s.io" => {
            let asked = spec["audiences"].as_array().filter(|audiences| !audiences.is_empty()).cloned();
            let asked = asked.unwrap_or_else(|| vec![json!(API_AUDIENCE)]);
            let known = spec["token"].as_str().and_then(|token| state.tokens.get(token));
            match known.filter(|(_, audience)| asked.contains(&json!(audience))) {
                Some((user, audience)) => json!({
                    "authenticated": true,
                    "audiences": [audience],
                    "user": {"username": user, "uid": format!("{user}-uid"), "groups": ["system:authenticated"]},
                }),
                None => json!({"user": {}, "error": "[invalid bearer token]"}),
            }
        }
        "subjectaccessreviews.authorization.k8s.io" => {
            let access =
                [&spec["user"], &spec["nonResourceAttributes"]["verb"], &spec["nonResourceAttributes"]["path"]];
            let access = access.map(|text| text.as_str().unwrap_or_default().to_owned());
            json!({"allowed": state.grants.contains(&access)})
        }
        _ => return None,
    };
    Some(review)
}
