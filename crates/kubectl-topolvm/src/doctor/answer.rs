//! Turns answers of the API server into facts.

use topolvm_doctor::{ReadError, ReadResult};

use crate::request::{RequestError, RequestResult};

impl From<RequestError> for ReadError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Forbidden { verb, resource } => Self::Forbidden { verb, resource },
            RequestError::Absent { resource } => Self::Absent { resource },
            failed @ RequestError::Failed { .. } => Self::Failed { message: failed.to_string() },
        }
    }
}

/// Turns the answer to a request into a fact.
pub(super) fn fact<T>(answer: RequestResult<T>) -> ReadResult<T> {
    answer.map_err(ReadError::from)
}
