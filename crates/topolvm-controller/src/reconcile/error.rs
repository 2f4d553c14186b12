//! The error of a reconcile, which is retried after a pause, and how answers of the API server become one.

/// A reconcile that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error("cannot {action} {object}")]
    Api { action: &'static str, object: String, source: Box<kube::Error> },
    #[error("cannot {action} {object}: the API server does not answer")]
    Timeout { action: &'static str, object: String },
    #[error("cannot watch {what}; allow list and watch of it in the role of this service account")]
    Watch { what: &'static str, source: kube::runtime::watcher::Error },
    #[error("the claims have not been listed yet")]
    ClaimsNotListed,
}

impl ReconcileError {
    /// Returns a function for `map_err` on calls of the API server.
    pub(super) fn api(action: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Api { action, object, source: Box::new(source) }
    }

    /// Returns whether the role of this service account does not allow a call.
    pub(super) fn is_forbidden(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        matches!(&**source, kube::Error::Api(status) if status.code == 403)
    }
}

/// Turns the answer 404 into `None`.
pub(super) fn none_if_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

/// Turns 404 and 409 into `None`, for a deletion that names the UID: an object of the name with another UID is not the
/// one that was meant, which is gone.
pub(super) fn none_if_deleted<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        other => other.map(Some),
    }
}
