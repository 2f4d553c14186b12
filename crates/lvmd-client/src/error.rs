//! Errors of calls to lvmd, and their meaning for the LV.

use std::time::Duration;

use tonic::Code;
use topolvm_runtime::grpc::GrpcCode;

/// Reason of lvmd for an LV that is proven not to exist.
const LV_NOT_FOUND: &str = "LV_NOT_FOUND";
/// Reason of lvmd for a physical volume that the volume group is proven not to have.
const PV_NOT_FOUND: &str = "PV_NOT_FOUND";

/// Proof, or none, that an error gives of the absence of an LV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// lvmd has read the volume groups, and the LV is in none.
    Proven,
    /// "Not found" without a reason: TopoLVM's lvmd also answers it for device classes and volume groups.
    Claimed,
    /// The error does not show it, or something else is missing.
    Unknown,
}

/// Error of a call to lvmd.
#[derive(Debug, thiserror::Error)]
pub enum LvmdError {
    /// lvmd, or the connection to it, answered with an error.
    #[error("lvmd: {call}: {message}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Code of the answer.
        code: Code,
        /// Message of the answer.
        message: String,
        /// Reason that lvmd returns with the code, such as `LV_NOT_FOUND`.
        reason: Option<String>,
        /// True when the connection broke and no lvmd has answered.
        is_broken_connection: bool,
    },
    /// lvmd did not answer in time.
    #[error("lvmd did not answer {call} within {} s", .limit.as_secs())]
    Timeout {
        /// Name of the call.
        call: &'static str,
        /// Deadline.
        limit: Duration,
    },
    /// lvmd answers that it is not serving.
    #[error("lvmd is not serving; see its log")]
    NotServing,
    /// A size that no volume can have.
    #[error("a request to lvmd or its response has an invalid size")]
    Size,
}

impl LvmdError {
    /// Returns whether a retry may succeed without an intervention: lvmd is away, restarting or busy.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::NotServing => true,
            Self::Call { code, is_broken_connection, .. } => {
                *is_broken_connection
                    || matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted)
            }
            Self::Size => false,
        }
    }

    /// Returns whether the error proves that the LV does not exist. The reason decides, and the code only if there is
    /// no reason.
    pub fn absence(&self) -> Absence {
        let Self::Call { code, reason, .. } = self else { return Absence::Unknown };
        match (code, reason.as_deref()) {
            (Code::NotFound, Some(LV_NOT_FOUND)) => Absence::Proven,
            (Code::NotFound, None) => Absence::Claimed,
            _ => Absence::Unknown,
        }
    }

    /// Returns whether the error proves that the physical volume is not in the volume group.
    pub fn is_disk_gone(&self) -> bool {
        matches!(self, Self::Call { code: Code::NotFound, reason, .. } if reason.as_deref() == Some(PV_NOT_FOUND))
    }

    /// Returns whether lvmd does not know the call.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Call { code: Code::Unimplemented, .. })
    }

    /// Returns lvmd's message without the name of the call.
    pub fn detail(&self) -> String {
        match self {
            Self::Call { message, .. } => message.clone(),
            Self::Timeout { .. } | Self::NotServing | Self::Size => self.to_string(),
        }
    }
}

impl GrpcCode for LvmdError {
    fn code(&self) -> Code {
        match self {
            // Whatever broke between the two, the caller may try again
            Self::Call { .. } if self.is_transient() => Code::Unavailable,
            Self::Call { code, .. } => *code,
            Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::NotServing => Code::Unavailable,
            Self::Size => Code::Internal,
        }
    }
}
