//! The reason of each error: a word for programs, sent in `google.rpc.ErrorInfo` beside the gRPC code. Clients rely on
//! these words.

use super::Error;

/// The domain of the reasons in `google.rpc.ErrorInfo`.
pub(super) const DOMAIN: &str = "lvmd.topolvm.io";

/// Returns the reason of an error; `None` for a mistake of lvmd itself.
pub(super) fn of(error: &Error) -> Option<&'static str> {
    Some(match error {
        // The proof that a volume is gone, and never said of anything else.
        Error::VolumeNotFound { .. } => "LV_NOT_FOUND",
        Error::UnknownDeviceClass(_) => "DEVICE_CLASS_UNKNOWN",
        Error::UnknownOptionClass(_) => "OPTION_CLASS_UNKNOWN",
        Error::VolumeGroupMissing(_) => "VG_NOT_FOUND",
        Error::PhysicalVolumesMissing { .. } => "VG_INCOMPLETE",
        Error::ThinPoolMissing { .. } => "THIN_POOL_NOT_FOUND",
        Error::PoolDoesNotZero { .. } => "THIN_POOL_DOES_NOT_ZERO",
        Error::AlreadyExists { .. } => "LV_EXISTS",
        Error::NoSpace { .. } | Error::PoolFull { .. } => "NO_SPACE",
        Error::PoolBroken { .. } => "THIN_POOL_BROKEN",
        Error::InUse { .. } => "LV_IN_USE",
        Error::NotAllowed { .. } | Error::Elsewhere { .. } | Error::Ambiguous { .. } => "LV_NOT_ALLOWED",
        Error::BeingMade { .. } | Error::NotEmpty { .. } => "LV_BEING_MADE",
        Error::Stopping => "STOPPING",
        Error::ThickClass(_) | Error::ThickSource { .. } => "SNAPSHOT_NEEDS_THIN",
        Error::SmallerThanSource { .. } => "SMALLER_THAN_SOURCE",
        Error::Lvm(error) => of_lvm(error),
        Error::Vanished { .. } | Error::Interrupted(_) | Error::Tag(_) => return None,
    })
}

fn of_lvm(error: &lvm::Error) -> &'static str {
    match error {
        lvm::Error::VolumeNotFound { .. } => "LV_NOT_FOUND",
        lvm::Error::GroupNotFound(_) => "VG_NOT_FOUND",
        lvm::Error::Changed { .. } => "LV_BEING_MADE",
        lvm::Error::AlreadyExists { .. } => "LV_EXISTS",
        lvm::Error::NoSpace { .. } => "NO_SPACE",
        lvm::Error::Busy { .. } => "LV_IN_USE",
        lvm::Error::Incomplete { .. } => "VG_INCOMPLETE",
        lvm::Error::Timeout { .. } => "LVM_TIMEOUT",
        lvm::Error::Run { .. }
        | lvm::Error::Exit { .. }
        | lvm::Error::Report { .. }
        | lvm::Error::ThinDeviceExists { .. } => "LVM_FAILED",
    }
}
