//! Meaning of a failed CreateVolume, as CSI defines the codes. Pure.

use csi_calls::{CallError, Code};

/// Outcome of a failed CreateVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateFailure {
    /// The call may still have an effect: only the same call shows the outcome.
    InBackground,
    /// No volume exists, and none will with this request.
    Infeasible,
    /// No volume exists; another node may have free space.
    Exhausted,
    /// No volume exists.
    Final,
}

impl From<&CallError> for CreateFailure {
    fn from(error: &CallError) -> Self {
        match error.code() {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => Self::InBackground,
            Code::InvalidArgument => Self::Infeasible,
            Code::ResourceExhausted => Self::Exhausted,
            Code::Ok
            | Code::Unknown
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => Self::Final,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_failure_follows_the_code() {
        let special = [
            (Code::Cancelled, CreateFailure::InBackground),
            (Code::DeadlineExceeded, CreateFailure::InBackground),
            (Code::Unavailable, CreateFailure::InBackground),
            (Code::Aborted, CreateFailure::InBackground),
            (Code::InvalidArgument, CreateFailure::Infeasible),
            (Code::ResourceExhausted, CreateFailure::Exhausted),
        ];
        for code in (1..=16).map(Code::from_i32) {
            let expected = special.iter().find(|(other, _)| *other == code);
            let expected = expected.map_or(CreateFailure::Final, |(_, failure)| *failure);
            assert_eq!(CreateFailure::from(&CallError::new(code, "")), expected, "{code:?}");
        }
    }
}
