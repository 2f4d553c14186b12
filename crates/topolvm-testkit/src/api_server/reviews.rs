//! TokenReview and SubjectAccessReview: authentication and authorization, answered and never stored.

use serde_json::{Value, json};

use super::ApiServer;
use super::kind::Kind;
use super::state::State;

impl ApiServer {
    /// Authenticates a token as this user from now on.
    pub fn add_token(&self, token: &str, user: &str) {
        self.shared.lock().tokens.insert(token.to_owned(), user.to_owned());
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
            match spec["token"].as_str().and_then(|token| state.tokens.get(token)) {
                Some(user) => json!({
                    "authenticated": true,
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
