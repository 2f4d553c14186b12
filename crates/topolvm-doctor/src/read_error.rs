//! Facts that could not be read.

/// Error of reading a fact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The right is missing.
    #[error("you may not {verb} {resource}; request this right, or use an account that has it")]
    Forbidden {
        /// `list`, `get` or `create`.
        verb: &'static str,
        /// Resource as roles name it.
        resource: String,
    },
    /// The API server does not serve the resource.
    #[error("the API server does not serve {resource}")]
    Absent {
        /// Resource as roles name it.
        resource: String,
    },
    /// Anything else.
    #[error("{message}")]
    Failed {
        /// The whole message.
        message: String,
    },
}

/// A fact, or the reason why it could not be read.
pub type ReadResult<T> = Result<T, ReadError>;

/// Returns a fact, or the error with which it could not be read.
pub(crate) fn read<T>(fact: &ReadResult<Vec<T>>) -> ReadResult<&[T]> {
    fact.as_deref().map_err(Clone::clone)
}
