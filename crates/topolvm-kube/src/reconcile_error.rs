//! The error of a reconcile, which is retried after a pause, and how answers of the API server become one.

/// A reconcile that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server refused a call.
    #[error("cannot {action} {object}")]
    Api {
        /// The verb of the call, and what comes before the name of the object.
        action: &'static str,
        /// Name of the object.
        object: String,
        /// Answer of the API server, or why there is none.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("cannot {action} {object}: the API server does not answer")]
    Timeout {
        /// The verb of the call, and what comes before the name of the object.
        action: &'static str,
        /// Name of the object.
        object: String,
    },
    /// A watch failed.
    #[error("cannot watch {what}; allow list and watch of it in the role of this service account")]
    Watch {
        /// Name of the watched object, or of its kind.
        what: &'static str,
        /// Error of the watch.
        source: kube::runtime::watcher::Error,
    },
    /// The watch of claims has not listed all of them yet.
    #[error("the claims have not been listed yet")]
    ClaimsNotListed,
}

impl ReconcileError {
    /// Returns a function for `map_err` on calls of the API server.
    pub fn api(action: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Api { action, object, source: Box::new(source) }
    }

    /// Returns whether the role of this service account does not allow a call.
    pub fn is_forbidden(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        matches!(&**source, kube::Error::Api(status) if status.code == 403)
    }
}

/// Turns the answer 404 into `None`.
pub fn none_if_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

/// Turns 404 and 409 into `None`, for a deletion that names the UID: an object of the name with another UID is not the
/// one that was meant, which is gone.
pub fn none_if_deleted<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        other => other.map(Some),
    }
}
