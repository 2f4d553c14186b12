//! Errors of an attempt to create, check or delete a snapshot.

use csi_calls::CallError;
use topolvm_kube::{ReconcileError, SecretReadError};

use crate::content::ContentNames;
use crate::driver_snapshot::is_final;
use crate::secret_reference::SecretError;
use crate::snapshot_request::RequestError;

/// An attempt that is repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    #[error(transparent)]
    Api(#[from] ReconcileError),
    /// The driver refused the call, or did not answer it.
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the {} names no {}; delete the {}, and create it again", .0.content, .0.class, .0.object)]
    NoClass(&'static ContentNames),
    #[error("{} {class} does not exist; create it again, or delete the {}", .names.class, .names.object)]
    ClassMissing { names: &'static ContentNames, class: String },
    #[error("{} {class} is for the driver {driver}; recreate it for this driver", .names.class)]
    ClassOfOtherDriver { names: &'static ContentNames, class: String, driver: String },
    #[error(transparent)]
    SecretRead(#[from] SecretReadError),
    #[error("the driver has no {} {id}; correct {} in a new {}", .names.what, .names.handle_field, .names.content)]
    Missing { names: &'static ContentNames, id: String },
}

impl AttemptError {
    /// Returns whether users see it in the status and in an Event. Failures of the API server are in the log alone.
    pub(crate) const fn is_for_users(&self) -> bool {
        !matches!(self, Self::Api(_) | Self::SecretRead(SecretReadError::Api(_)))
    }

    /// Returns whether the driver has said that no call to create the snapshot has an effect any more.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Call(error) if is_final(error.code()))
    }
}
