//! Why a controller could not do its work. It is done again after a pause.

use kube::core::Status;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot {action} {object}")]
    Api { action: &'static str, object: String, source: Box<kube::Error> },
    #[error("cannot form a patch")]
    Form(#[from] serde_json::Error),
    #[error("the claims have not been listed yet")]
    ClaimsUnknown,
}

impl Error {
    /// For `map_err` on calls of the API server.
    pub(super) fn api(action: &'static str, object: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let object = object.into();
        move |source| Self::Api { action, object, source: Box::new(source) }
    }
}

/// What the API server said, if it did.
pub(super) fn status(error: &kube::Error) -> Option<&Status> {
    if let kube::Error::Api(status) = error { Some(status) } else { None }
}

/// `None` for an object that is not there.
pub(super) fn present<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if status(&error).is_some_and(|status| status.code == 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same for a deletion that names the UID: another object of the name is not the one that was meant, which is gone.
pub(super) fn deleted<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match present(result) {
        Err(error) if status(&error).is_some_and(|status| status.code == 409) => Ok(None),
        other => other,
    }
}
