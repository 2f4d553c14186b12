//! The error of a reconcile, which is retried after a pause, and how answers of the API server become one.

use kube::core::Status;

/// A reconcile that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error("cannot {action} {object}")]
    Api { action: &'static str, object: String, source: Box<kube::Error> },
    #[error("the claims have not been listed yet")]
    ClaimsNotListed,
}

impl ReconcileError {
    /// Returns a function for `map_err` on calls of the API server.
    pub(super) fn api(action: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Api { action, object, source: Box::new(source) }
    }
}

/// Returns the status that the API server answered, if it did.
fn api_status(error: &kube::Error) -> Option<&Status> {
    if let kube::Error::Api(status) = error { Some(status) } else { None }
}

/// Turns the answer 404 into `None`.
pub(super) fn none_if_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if api_status(&error).is_some_and(|status| status.code == 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns 404 and 409 into `None`, for a deletion that names the UID: an object of the name with another UID is not the
/// one that was meant, which is gone.
pub(super) fn none_if_deleted<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match none_if_not_found(result) {
        Err(error) if api_status(&error).is_some_and(|status| status.code == 409) => Ok(None),
        other => other,
    }
}
