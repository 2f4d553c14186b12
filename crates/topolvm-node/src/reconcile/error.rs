//! Errors of reconciling an object. Each is retried with back-off.

use linux_mount::{DeviceUse, MountError};
use lvmd_client::LvmdError;
use topolvm_api::ParseQuantityError;
use topolvm_kube::api_server::ApiError;

/// Error of reconciling an object.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server answered with an error, or not at all.
    #[error("cannot {action}")]
    Api {
        /// Action that failed.
        action: &'static str,
        /// Error of the API server.
        source: ApiError,
    },
    /// lvmd is away or busy.
    #[error("waiting for lvmd")]
    LvmdAway(#[source] LvmdError),
    /// The source of a copy has no volume yet.
    #[error("waiting for the source, LogicalVolume {0}, which has no volume yet")]
    SourceNotReady(String),
    /// A member of a group of snapshots does not exist yet, or is being deleted.
    #[error("waiting for LogicalVolume {0}, a snapshot of the same group")]
    GroupIncomplete(String),
    /// There is the LV of an earlier object of this name; the status has the message, too.
    #[error("{0}")]
    HasPredecessor(String),
    /// The LV cannot grow; the status has the error, too.
    #[error("cannot expand the volume")]
    Expand(#[source] LvmdError),
    /// The size in the object cannot be parsed; the status has the error, too.
    #[error("cannot expand the volume")]
    Size(#[from] ParseQuantityError),
    /// The lookup of the volume's device failed.
    #[error("cannot look up the device of the volume; its I/O limits may not be in force")]
    LimitIo(#[source] LvmdError),
    /// Something refers to the volume of a deleted object; its condition has the message, too.
    #[error("{0}")]
    Referenced(String),
    /// The LV cannot be removed.
    #[error("cannot remove the logical volume; the object is kept until it is removed")]
    Remove(#[source] LvmdError),
    /// The LV cannot be removed, because something holds its device.
    #[error(
        "{}; its device is {}; the object is kept until the logical volume is removed",
        .refusal.detail().trim_end_matches('.'), list(holders)
    )]
    Held {
        /// Holders of the device.
        holders: Vec<DeviceUse>,
        /// Answer of lvmd.
        refusal: LvmdError,
    },
    /// The device of the LV is in use. Its user would have access to the next volume that gets its device number.
    #[error(
        "the device of the logical volume is still in use: {}; the object is kept until its last pod on the node has \
         ended",
        list(.0)
    )]
    InUse(Vec<DeviceUse>),
    /// The uses of the device cannot be found out.
    #[error("cannot determine whether the device of the logical volume is still in use")]
    DeviceUses(#[source] MountError),
    /// lvmd answers "not found" to the removal of an LV, and lists it.
    #[error("lvmd reports logical volume {0} as not found, but lists it")]
    StillListed(String),
}

/// Lists the uses of a device.
fn list(uses: &[DeviceUse]) -> String {
    uses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl ReconcileError {
    /// Returns whether the object is not found.
    pub(super) fn is_not_found(&self) -> bool {
        self.status().is_some_and(|code| code == 404)
    }

    /// Returns whether the object is gone, or replaced by another one of the same name: a patch that tests the UID is
    /// invalid then.
    pub(super) fn is_gone_or_replaced(&self) -> bool {
        self.status().is_some_and(|code| matches!(code, 404 | 409 | 422))
    }

    /// Returns the HTTP status of the API server.
    pub(super) fn status(&self) -> Option<u16> {
        if let Self::Api { source, .. } = self { source.status() } else { None }
    }
}
