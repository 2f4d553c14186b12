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
    /// Returns whether users see it in an Event. Failures of the API server are in the log alone.
    pub(crate) const fn is_for_users(&self) -> bool {
        !matches!(self, Self::Api(_) | Self::SecretRead(SecretReadError::Api(_)))
    }

    /// Returns whether the volume cannot get a class because the class is the wrong one.
    pub(crate) const fn is_about_class(&self) -> bool {
        matches!(self, Self::ClassMissing(_) | Self::ClassOfOtherDriver { .. })
    }
}
