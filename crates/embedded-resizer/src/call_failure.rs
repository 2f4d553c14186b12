//! Meaning of a failed expansion or modification, as CSI defines the codes. Pure.

use csi_calls::Code;

/// Outcome of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// The call may still have an effect: only the same call shows the outcome.
    Uncertain,
    /// The call has no effect.
    Final,
    /// The call has no effect, and will have none with this request.
    Infeasible,
}

impl CallFailure {
    /// Returns the meaning of an answer to ControllerExpandVolume.
    pub(crate) const fn of_expansion(code: Code) -> Self {
        match code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
                Self::Uncertain
            }
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Self::Infeasible,
            // A driver that cannot expand volumes in use answers FailedPrecondition; this one can
            Code::Ok
            | Code::Unknown
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => Self::Final,
        }
    }

    /// Returns the meaning of an answer to ControllerModifyVolume.
    pub(crate) const fn of_modification(code: Code) -> Self {
        match (code, Self::of_expansion(code)) {
            (Code::InvalidArgument, _) => Self::Infeasible,
            (_, Self::Infeasible) => Self::Final,
            (_, failure) => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_failure_follows_the_code() {
        use CallFailure::{Final, Infeasible, Uncertain};
        let special = [
            (Code::Cancelled, (Uncertain, Uncertain)),
            (Code::DeadlineExceeded, (Uncertain, Uncertain)),
            (Code::Unavailable, (Uncertain, Uncertain)),
            (Code::ResourceExhausted, (Uncertain, Uncertain)),
            (Code::Aborted, (Uncertain, Uncertain)),
            (Code::InvalidArgument, (Infeasible, Infeasible)),
            (Code::OutOfRange, (Infeasible, Final)),
            (Code::NotFound, (Infeasible, Final)),
        ];
        for code in (1..=16).map(Code::from_i32) {
            let expected = special.iter().find(|(other, _)| *other == code);
            let expected = expected.map_or((Final, Final), |(_, failures)| *failures);
            assert_eq!((CallFailure::of_expansion(code), CallFailure::of_modification(code)), expected, "{code:?}");
        }
    }
}
