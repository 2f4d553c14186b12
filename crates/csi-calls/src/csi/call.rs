//! Time limit, metrics, error and Secrets of the calls of all services.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tonic::{Code, Request, Response, Status};
use topolvm_runtime::grpc::RpcMetrics;

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

/// Makes calls with a deadline, and records them like those over a socket.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The longest time that a call takes.
    pub(crate) timeout: Duration,
    pub(crate) metrics: RpcMetrics,
}

impl Caller {
    /// Calls a method with its deadline, which the service obeys as that of a call over a socket, and awaits the answer
    /// until then.
    pub(crate) async fn call<M, T, F>(
        &self,
        method: &str,
        message: M,
        call: impl FnOnce(Request<M>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let start = Instant::now();
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        let answer = match tokio::time::timeout(self.timeout, call(request)).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(CallError::from),
            Err(_elapsed) => Err(CallError::new(Code::DeadlineExceeded, "the driver did not answer in time")),
        };
        let code = answer.as_ref().err().map_or(Code::Ok, CallError::code);
        self.metrics.record(method, code, start.elapsed());
        answer
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_recorded_by_method_and_code() {
        let mut registry = Registry::default();
        let caller = Caller { timeout: Duration::from_secs(10), metrics: RpcMetrics::register(&mut registry) };
        let ok = caller.call("CreateVolume", (), async |_| Ok(Response::new(7))).await;
        let failed: Result<(), _> = caller.call("CreateVolume", (), async |_| Err(Status::aborted("busy"))).await;
        let silent: Result<(), _> = caller.call("DeleteVolume", (), |_| std::future::pending()).await;
        assert_eq!((ok.unwrap(), failed.unwrap_err().code()), (7, Code::Aborted));
        assert_eq!(silent.unwrap_err().code(), Code::DeadlineExceeded);
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            r#"topolvm_grpc_handled_total{method="CreateVolume",code="Ok"} 1"#,
            r#"topolvm_grpc_handled_total{method="CreateVolume",code="Aborted"} 1"#,
            r#"topolvm_grpc_handled_total{method="DeleteVolume",code="DeadlineExceeded"} 1"#,
            r#"topolvm_grpc_seconds_count{method="CreateVolume"} 2"#,
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
    }

    #[test]
    fn call_error_reads_as_that_of_a_sidecar() {
        let error = CallError::from(Status::out_of_range("node n1 is full"));
        assert_eq!(error.to_string(), "rpc error: code = OutOfRange desc = node n1 is full");
        let error = CallError::new(Code::Cancelled, "no");
        assert_eq!(error.to_string(), "rpc error: code = Canceled desc = no");
    }
}
