//! From typed errors to gRPC status.

use std::error::Error;
use std::fmt::Write as _;

use tonic::{Code, Status};

/// An error that knows its gRPC code. Implemented once per error enum, by an exhaustive match.
pub trait GrpcCode: Error {
    /// The code. What each one makes the sidecars do is in docs/errors.md.
    fn code(&self) -> Code;
}

/// The status for an error: its code, and the whole chain of causes as the message.
#[expect(clippy::needless_pass_by_value, reason = "so that it fits map_err and From")]
pub fn into_status<E: GrpcCode>(error: E) -> Status {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String cannot fail
        let _ = write!(message, ": {cause}");
        source = cause.source();
    }
    Status::new(error.code(), message)
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
    }
}
