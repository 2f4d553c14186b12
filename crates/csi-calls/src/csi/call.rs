//! Time limit, error and Secrets of the calls of all services.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Request, Response, Status};

/// Contents of a Secret for a call.
pub type Secrets = HashMap<String, String>;

/// A failed call. It reads as the sidecars write it into Events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {} desc = {message}", self.code_name())]
pub struct CallError {
    code: Code,
    message: String,
}

impl CallError {
    /// Makes the error of a call that is not made, or that has no answer.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the name of the code as the sidecars write it, such as `InvalidArgument`.
    #[must_use]
    pub fn code_name(&self) -> String {
        if self.code == Code::Cancelled { "Canceled".to_owned() } else { format!("{:?}", self.code) }
    }

    /// Returns the message of the driver.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::new(status.code(), status.message())
    }
}

/// The longest time that a call takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTimeout(pub(crate) Duration);

impl CallTimeout {
    /// Makes a call with its deadline, which the service obeys as that of a call over a socket, and awaits the answer
    /// until then.
    pub(crate) async fn call<M, T, F>(&self, message: M, call: impl FnOnce(Request<M>) -> F) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut request = Request::new(message);
        request.set_timeout(self.0);
        match tokio::time::timeout(self.0, call(request)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_elapsed) => Err(CallError::new(Code::DeadlineExceeded, "the driver did not answer in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_error_reads_as_that_of_a_sidecar() {
        let error = CallError::from(Status::out_of_range("node n1 is full"));
        assert_eq!(error.to_string(), "rpc error: code = OutOfRange desc = node n1 is full");
        let error = CallError::new(Code::Cancelled, "no");
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = no");
    }
}
