//! Turns answers of the API server into facts.

use cli_runtime::request::{RequestError, RequestResult};
use topolvm_doctor::{ReadError, ReadResult};

/// Turns the answer to a request into a fact.
pub(super) fn fact<T>(answer: RequestResult<T>) -> ReadResult<T> {
    answer.map_err(|error| match error {
        RequestError::Forbidden { verb, resource } => ReadError::Forbidden { verb, resource },
        RequestError::Absent { resource } => ReadError::Absent { resource },
        failed @ RequestError::Failed { .. } => ReadError::Failed { message: failed.to_string() },
    })
}
