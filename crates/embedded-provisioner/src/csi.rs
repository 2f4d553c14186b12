//! Calls the CSI Controller service of this process, without a socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Type as Kind, rpc};
use topolvm_proto::csi::{
    ControllerGetCapabilitiesRequest, CreateVolumeRequest, DeleteVolumeRequest, Volume, volume_content_source,
};

/// DeleteVolume calls for a volume that does not fit its request.
const CLEANUP_ATTEMPTS: usize = 5;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub(crate) struct CallError {
    code: Code,
    message: String,
}

/// Meaning of a failed CreateVolume, as CSI defines the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateFailure {
    /// The call may still have an effect: only the same call shows the outcome.
    InBackground,
    /// No volume exists, and none will with this request.
    Infeasible,
    /// No volume exists; another node may have free space.
    Exhausted,
    /// No volume exists.
    Final,
}

impl CallError {
    /// Returns the meaning of this answer to CreateVolume.
    pub(crate) const fn create_failure(&self) -> CreateFailure {
        match self.code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => CreateFailure::InBackground,
            Code::InvalidArgument => CreateFailure::Infeasible,
            Code::ResourceExhausted => CreateFailure::Exhausted,
            Code::Ok
            | Code::Unknown
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => CreateFailure::Final,
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

/// Capabilities of the Controller service that decide about requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Distinguishes volumes for one pod from those for several pods of a node.
    pub(crate) single_node_multi_writer: bool,
    /// Restores snapshots.
    pub(crate) snapshots: bool,
    /// Clones volumes.
    pub(crate) clones: bool,
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

    /// Returns what the service can do.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let request = self.request(ControllerGetCapabilitiesRequest {});
        let answer = self.finish(self.service.controller_get_capabilities(request)).await?;
        let kinds = answer.capabilities.into_iter().filter_map(|capability| match capability.r#type? {
            Kind::Rpc(announced) => Some(announced.r#type()),
        });
        let announced: Vec<rpc::Type> = kinds.collect();
        let has = |kind| announced.contains(&kind);
        Ok(Capabilities {
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
            snapshots: has(rpc::Type::CreateDeleteSnapshot),
            clones: has(rpc::Type::CloneVolume),
        })
    }

    /// Creates a volume, or returns the existing one of this name.
    pub(crate) async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume, CallError> {
        let answer = self.finish(self.service.create_volume(self.request(request))).await?;
        answer.volume.ok_or_else(|| Status::unavailable("CreateVolume returned no volume").into())
    }

    /// Deletes a volume; one that does not exist is deleted.
    pub(crate) async fn delete_volume(&self, id: &str, secrets: HashMap<String, String>) -> Result<(), CallError> {
        let request = self.request(DeleteVolumeRequest { volume_id: id.to_owned(), secrets });
        self.finish(self.service.delete_volume(request)).await.map(drop)
    }

    /// Deletes a volume that does not fit its request, in several attempts.
    pub(crate) async fn clean_up(&self, id: &str, secrets: &HashMap<String, String>) -> Result<(), CallError> {
        let mut result = Ok(());
        for _ in 0..CLEANUP_ATTEMPTS {
            result = self.delete_volume(id, secrets.clone()).await;
            if result.is_ok() {
                break;
            }
        }
        result
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
            Err(_elapsed) => Err(Status::deadline_exceeded("the call took too long").into()),
        }
    }
}

/// Returns CSI's name of the snapshot with this id as a source.
pub(crate) fn snapshot_source(id: String) -> topolvm_proto::csi::VolumeContentSource {
    let source = volume_content_source::SnapshotSource { snapshot_id: id };
    topolvm_proto::csi::VolumeContentSource { r#type: Some(volume_content_source::Type::Snapshot(source)) }
}

/// Returns CSI's name of the volume with this id as a source.
pub(crate) fn volume_source(id: String) -> topolvm_proto::csi::VolumeContentSource {
    let source = volume_content_source::VolumeSource { volume_id: id };
    topolvm_proto::csi::VolumeContentSource { r#type: Some(volume_content_source::Type::Volume(source)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_failure_follows_the_code() {
        let special = [
            (Code::Cancelled, CreateFailure::InBackground),
            (Code::DeadlineExceeded, CreateFailure::InBackground),
            (Code::Unavailable, CreateFailure::InBackground),
            (Code::Aborted, CreateFailure::InBackground),
            (Code::InvalidArgument, CreateFailure::Infeasible),
            (Code::ResourceExhausted, CreateFailure::Exhausted),
        ];
        for code in (1..=16).map(Code::from_i32) {
            let expected = special.iter().find(|(other, _)| *other == code);
            let expected = expected.map_or(CreateFailure::Final, |(_, failure)| *failure);
            assert_eq!(CallError { code, message: String::new() }.create_failure(), expected, "{code:?}");
        }
    }
}
