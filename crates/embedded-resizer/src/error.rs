//! Errors of an expansion or modification.

use csi_calls::CallError;
use topolvm_kube::{ReconcileError, SecretReadError};

/// An expansion or modification that is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    #[error(transparent)]
    Api(#[from] ReconcileError),
    /// The driver refused the call, or did not answer it.
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("PersistentVolume {0} does not exist; restore it, or delete the claim")]
    VolumeMissing(String),
    #[error("PersistentVolume {0} has no volume handle; correct it, or delete the claim")]
    NoHandle(String),
    #[error(
        "the access modes of the PersistentVolume, {0}, cannot be combined; recreate it with ReadWriteOnce or \
         ReadWriteOncePod"
    )]
    AccessModes(String),
    #[error(
        "the driver answered with {bytes} bytes, fewer than the {requested} that were requested; report this as a bug"
    )]
    TooSmall { requested: u64, bytes: u64 },
    #[error(transparent)]
    SecretRead(#[from] SecretReadError),
    #[error("VolumeAttributesClass {0} does not exist; create it, or request another class in the claim")]
    ClassMissing(String),
    #[error("VolumeAttributesClass {class} is for the driver {driver}; request another class in the claim")]
    ClassOfOtherDriver { class: String, driver: String },
}

impl OperationError {
    /// Returns whether users see it in an Event. Failures of the API server are in the log alone, unless it refuses a
    /// request, as an admission policy does.
    pub(crate) fn is_for_users(&self) -> bool {
        match self {
            Self::Api(error) | Self::SecretRead(SecretReadError::Api(error)) => is_refusal(error),
            Self::Call(_)
            | Self::VolumeMissing(_)
            | Self::NoHandle(_)
            | Self::AccessModes(_)
            | Self::TooSmall { .. }
            | Self::SecretRead(_)
            | Self::ClassMissing(_)
            | Self::ClassOfOtherDriver { .. } => true,
        }
    }

    /// Returns whether the volume cannot get a class because the class is the wrong one.
    pub(crate) const fn is_about_class(&self) -> bool {
        matches!(self, Self::ClassMissing(_) | Self::ClassOfOtherDriver { .. })
    }
}

/// Returns whether the API server refuses a request: it does so until a role, a policy or the object changes.
fn is_refusal(error: &ReconcileError) -> bool {
    let ReconcileError::Api { source, .. } = error else { return false };
    matches!(&**source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
}
