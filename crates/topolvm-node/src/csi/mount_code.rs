//! The CSI code of each error of `linux-mount`, which knows no CSI.

use linux_mount::MountError;
use tonic::Code;

/// Returns the CSI code of an error of a mount, a device or a program.
pub(super) const fn code_of(error: &MountError) -> Code {
    match error {
        MountError::NoDevice(_)
        | MountError::WrongDevice { .. }
        | MountError::Damaged { .. }
        | MountError::SameIdentity { .. }
        | MountError::Busy { .. }
        | MountError::Held { .. }
        | MountError::NotShared(_)
        | MountError::NotVisible(_) => Code::FailedPrecondition,
        MountError::TooSlow { .. } | MountError::Hung { .. } => Code::DeadlineExceeded,
        // Kubelet would not try a growth again before the pod ends that FailedPrecondition answers
        MountError::Frozen { .. } => Code::Unavailable,
        MountError::Io { .. }
        | MountError::Table(_)
        | MountError::NotABlockDevice(_)
        | MountError::NoTool(_)
        | MountError::Spawn { .. }
        | MountError::Failed { .. }
        | MountError::Killed { .. }
        | MountError::Superblock { .. } => Code::Internal,
    }
}
