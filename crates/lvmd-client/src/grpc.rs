//! gRPC calls to lvmd: the transport, the deadline of a call, and how a status becomes an [`LvmdError`].

use std::time::Duration;

use tonic::Status;
use tonic::body::Body;
use topolvm_runtime::grpc::reason_of;
use tower::BoxError;
use tower::util::BoxCloneSyncService;

use crate::LvmdError;

/// Domain of the reasons that lvmd gives (`google.rpc.ErrorInfo`).
const DOMAIN: &str = "lvmd.topolvm.io";

pub(crate) type Transport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// An error of the connection to lvmd.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to lvmd")]
pub(crate) struct TransportError(#[source] pub(super) BoxError);

/// Makes a call with a deadline.
pub(crate) async fn call<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, LvmdError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(call, &status)),
        Err(_) => Err(LvmdError::Timeout { call, limit }),
    }
}

/// Turns the status with which a call was answered into an error.
pub(crate) fn from_status(call: &'static str, status: &Status) -> LvmdError {
    LvmdError::Call {
        call,
        code: status.code(),
        message: status.message().to_owned(),
        reason: reason_of(status, DOMAIN),
        // A status with a cause was not sent by lvmd but made on this side, of a connection that broke
        is_broken_connection: std::error::Error::source(status).is_some(),
    }
}
