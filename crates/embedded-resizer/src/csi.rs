//! Calls the CSI Controller service of this process, without a socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Type as Kind, rpc};
use topolvm_proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerModifyVolumeRequest,
    VolumeCapability,
};

/// Contents of a Secret for a call.
pub(crate) type Secrets = HashMap<String, String>;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", self.code_name())]
pub(crate) struct CallError {
    code: Code,
    message: String,
}

/// Meaning of a failed call, as CSI defines the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The call may still have an effect: only the same call shows the outcome.
    Uncertain,
    /// The call has no effect.
    Final,
    /// The call has no effect, and will have none with this request.
    Infeasible,
}

/// A volume after its expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    /// Its size.
    pub(crate) bytes: u64,
    /// True if the kubelet has to grow the filesystem.
    pub(crate) needs_node: bool,
}

impl CallError {
    /// Returns the meaning of this answer to ControllerExpandVolume.
    pub(crate) const fn expand_failure(&self) -> Failure {
        match self.code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
                Failure::Uncertain
            }
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Failure::Infeasible,
            // A driver that cannot expand volumes in use answers FailedPrecondition; this one can
            Code::Ok
            | Code::Unknown
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => Failure::Final,
        }
    }

    /// Returns the meaning of this answer to ControllerModifyVolume.
    pub(crate) const fn modify_failure(&self) -> Failure {
        match (self.code, self.expand_failure()) {
            (Code::InvalidArgument, _) => Failure::Infeasible,
            (_, Failure::Infeasible) => Failure::Final,
            (_, failure) => failure,
        }
    }

    /// Returns the code as CSI names it, such as `InvalidArgument`.
    pub(crate) fn code_name(&self) -> String {
        format!("{:?}", self.code)
    }

    /// Returns the message of the driver.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

/// The Controller service.
#[derive(Clone)]
pub(crate) struct CsiController {
    service: Arc<dyn Controller>,
    timeout: Duration,
}

impl CsiController {
    pub(crate) fn new(service: Arc<dyn Controller>, timeout: Duration) -> Self {
        Self { service, timeout }
    }

    /// Returns whether the driver distinguishes volumes for one pod from those for several pods of a node.
    pub(crate) async fn has_single_node_modes(&self) -> Result<bool, CallError> {
        let request = self.request(ControllerGetCapabilitiesRequest {});
        let answer = self.finish(self.service.controller_get_capabilities(request)).await?;
        Ok(answer.capabilities.into_iter().any(|capability| match capability.r#type {
            Some(Kind::Rpc(announced)) => announced.r#type() == rpc::Type::SingleNodeMultiWriter,
            None => false,
        }))
    }

    /// Expands a volume to at least so many bytes.
    pub(crate) async fn expand_volume(
        &self,
        id: &str,
        bytes: u64,
        capability: VolumeCapability,
        secrets: Secrets,
    ) -> Result<Expanded, CallError> {
        let required_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = self.request(ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            secrets,
            volume_capability: Some(capability),
        });
        let answer = self.finish(self.service.controller_expand_volume(request)).await?;
        let bytes = u64::try_from(answer.capacity_bytes).unwrap_or_default();
        Ok(Expanded { bytes, needs_node: answer.node_expansion_required })
    }

    /// Applies the parameters of a VolumeAttributesClass to a volume.
    pub(crate) async fn modify_volume(
        &self,
        id: &str,
        mutable_parameters: HashMap<String, String>,
        secrets: Secrets,
    ) -> Result<(), CallError> {
        let request =
            self.request(ControllerModifyVolumeRequest { volume_id: id.to_owned(), secrets, mutable_parameters });
        self.finish(self.service.controller_modify_volume(request)).await.map(drop)
    }

    /// Adds the deadline, which the service obeys as that of a call over a socket.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Awaits the answer until the deadline.
    async fn finish<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, CallError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_elapsed) => Err(Status::deadline_exceeded("the driver did not answer in time").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(code: Code) -> (Failure, Failure) {
        let error = CallError { code, message: String::new() };
        (error.expand_failure(), error.modify_failure())
    }

    #[test]
    fn failure_follows_the_code() {
        use Failure::{Final, Infeasible, Uncertain};
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
            assert_eq!(meaning(code), expected, "{code:?}");
        }
    }

    #[test]
    fn call_error_shows_code_and_message() {
        let error = CallError::from(Status::out_of_range("node n1 is full"));
        assert_eq!(error.to_string(), "OutOfRange: node n1 is full");
    }
}
