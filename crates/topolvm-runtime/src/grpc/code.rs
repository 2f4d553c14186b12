//! From typed errors to gRPC status.

use std::collections::HashMap;
use std::error::Error;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::error_chain;

/// An error that knows its gRPC code. Implemented once per error enum, by an exhaustive match.
pub trait GrpcCode: Error {
    /// Returns the code. What each one makes the sidecars do is in docs/errors.md.
    fn code(&self) -> Code;

    /// Returns a keyword for programs, if a code has several meanings; it is sent with the code.
    fn reason(&self) -> Option<Reason> {
        None
    }
}

/// A `google.rpc.ErrorInfo` without metadata (google/rpc/error_details.proto).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// In capitals, such as `NO_SPACE`.
    pub reason: &'static str,
    /// The owner of the keyword, written like the name of a service.
    pub domain: &'static str,
}

/// Returns the reason in a received status, if it is a keyword of this domain.
pub fn reason_of(status: &Status, domain: &str) -> Option<String> {
    status.get_details_error_info().filter(|info| info.domain == domain).map(|info| info.reason)
}

/// Returns the status for an error: its code, the whole chain of causes as the message, and its reason if it has one.
#[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err and From")]
pub fn into_status<E: GrpcCode>(error: E) -> Status {
    let message = error_chain(&error);
    match error.reason() {
        None => Status::new(error.code(), message),
        Some(Reason { reason, domain }) => {
            let details = ErrorDetails::with_error_info(reason, domain, HashMap::new());
            Status::with_error_details(error.code(), message, details)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot make the volume")]
    struct Outer(#[source] std::io::Error);

    impl GrpcCode for Outer {
        fn code(&self) -> Code {
            Code::Internal
        }
    }

    #[test]
    fn the_message_is_the_whole_chain() {
        let status = into_status(Outer(std::io::Error::other("disk on fire")));
        assert_eq!((status.code(), status.message()), (Code::Internal, "cannot make the volume: disk on fire"));
        assert_eq!((status.details(), reason_of(&status, "test")), (&[][..], None));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("full")]
    struct Full;

    impl GrpcCode for Full {
        fn code(&self) -> Code {
            Code::ResourceExhausted
        }

        fn reason(&self) -> Option<Reason> {
            Some(Reason { reason: "NO_SPACE", domain: "test" })
        }
    }

    #[test]
    fn error_reason_is_sent_with_the_code_and_bound_to_its_domain() {
        let status = into_status(Full);
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "full"));
        assert_eq!(reason_of(&status, "test").as_deref(), Some("NO_SPACE"));
        assert_eq!(reason_of(&status, "other"), None);
    }

    #[test]
    fn details_that_are_garbage_say_nothing() {
        let status = Status::with_details(Code::NotFound, "gone", vec![0xff; 9].into());
        assert_eq!(reason_of(&status, "test"), None);
    }
}
