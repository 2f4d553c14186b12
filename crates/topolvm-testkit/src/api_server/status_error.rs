//! Errors with the texts of the real server: clients and people match on reason and message.

use serde_json::{Value, json};

use super::kind::Kind;

/// The error of a request, which is sent as `metav1.Status`.
#[derive(Clone, Debug)]
pub(super) struct StatusError {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
}

impl StatusError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.details = json!({"name": name, "group": kind.group, "kind": kind.plural});
        self
    }

    pub(super) fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", kind.qualified_plural())).about(kind, name)
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(super) fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.qualified_plural());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    pub(super) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_plural());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    pub(super) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(super) fn apply_conflicts(conflicts: &[String]) -> Self {
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let message = format!("Apply failed with {} conflict{plural}: {}", conflicts.len(), conflicts.join("; "));
        Self::new(409, "Conflict", message)
    }

    pub(super) fn invalid(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is invalid: {why}", kind.qualified_kind());
        let mut error = Self::new(422, "Invalid", message);
        error.details = json!({"name": name, "group": kind.group, "kind": kind.name});
        error
    }

    pub(super) fn patch_failed(why: &str) -> Self {
        let message = "the server rejected our request due to an error in our request";
        let mut error = Self::new(422, "Invalid", message);
        error.details = json!({"causes": [{"reason": "UnexpectedServerResponse", "message": why}]});
        error
    }

    pub(super) fn bad_request(why: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", why)
    }

    pub(super) fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    pub(super) fn expired(requested: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {requested} ({oldest})"))
    }

    pub(super) fn page_expired() -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result.";
        Self::new(410, "Expired", message)
    }

    /// Returns the error of an injected failure with this HTTP status.
    pub(super) fn injected(code: u16) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "injected: bad request"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "injected: forbidden"),
            404 => ("NotFound", "the server could not find the requested resource"),
            409 => (
                "Conflict",
                "injected: the object has been modified; please apply your changes to the latest version and try again",
            ),
            410 => ("Expired", "injected: too old resource version"),
            422 => ("Invalid", "injected: invalid"),
            429 => ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
            500 => ("InternalError", "Internal error occurred: injected"),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "injected: the server was unable to return a response in time"),
            _ => ("", "injected failure"),
        };
        Self::new(code, reason, message)
    }

    /// Returns it as `metav1.Status`: the body of a response, or the object of the ERROR event of a watch.
    pub(super) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (false, Some(status)) = (self.details.is_null(), status.as_object_mut()) {
            status.insert("details".to_owned(), self.details.clone());
        }
        status
    }
}
