//! A CSI driver in memory: it records requests, and answers as a test says.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type as Kind, rpc};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;

/// An answer to CreateVolume.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The volume as requested.
    Created,
    /// An error.
    Fails(Code),
    /// A volume with fewer bytes.
    Small,
    /// An empty volume instead of a copy.
    NotCopied,
    /// None.
    Never,
}

/// The driver.
#[derive(Default)]
pub(super) struct FakeDriver {
    pub(super) created: Mutex<Vec<pb::CreateVolumeRequest>>,
    pub(super) deleted: Mutex<Vec<pb::DeleteVolumeRequest>>,
    /// Answers to the next calls of CreateVolume; then `Created`.
    pub(super) answers: Mutex<VecDeque<Answer>>,
    /// Errors of the next calls of DeleteVolume.
    pub(super) deletion_errors: Mutex<VecDeque<Code>>,
    /// Runs once when CreateVolume is called.
    pub(super) on_create: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl FakeDriver {
    /// Sets the answers to the next calls of CreateVolume.
    pub(super) fn answer(&self, answers: &[Answer]) {
        self.answers.lock().extend(answers.iter().cloned());
    }

    /// Makes the first request of this verb and resource after the next call of CreateVolume hang.
    pub(super) fn inject_after_call(&self, server: &ApiServer, verb: &'static str, resource: &'static str) {
        let server = server.clone();
        *self.on_create.lock() = Some(Box::new(move || server.inject(verb, resource, 1, Failure::Hang)));
    }
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not called by the provisioner"))
}

#[tonic::async_trait]
impl Controller for FakeDriver {
    async fn create_volume(
        &self,
        request: Request<pb::CreateVolumeRequest>,
    ) -> Result<Response<pb::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.created.lock().push(request.clone());
        if let Some(action) = self.on_create.lock().take() {
            action();
        }
        let answer = self.answers.lock().pop_front().unwrap_or(Answer::Created);
        let requested = request.capacity_range.unwrap().required_bytes;
        let mut volume = pb::Volume {
            capacity_bytes: requested,
            volume_id: format!("id-{}", request.name),
            content_source: request.volume_content_source,
            accessible_topology: request.accessibility_requirements.unwrap().preferred[..1].to_vec(),
            ..pb::Volume::default()
        };
        match answer {
            Answer::Created => {}
            Answer::Fails(code) => return Err(Status::new(code, "as the test says")),
            Answer::Small => volume.capacity_bytes = requested / 2,
            Answer::NotCopied => volume.content_source = None,
            Answer::Never => std::future::pending().await,
        }
        Ok(Response::new(pb::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<pb::DeleteVolumeRequest>,
    ) -> Result<Response<pb::DeleteVolumeResponse>, Status> {
        self.deleted.lock().push(request.into_inner());
        match self.deletion_errors.lock().pop_front() {
            Some(code) => Err(Status::new(code, "as the test says")),
            None => Ok(Response::new(pb::DeleteVolumeResponse {})),
        }
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let kinds = [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::CreateDeleteSnapshot,
            rpc::Type::CloneVolume,
            rpc::Type::SingleNodeMultiWriter,
        ];
        let capability =
            |kind: rpc::Type| pb::ControllerServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = kinds.map(capability).to_vec();
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<pb::ControllerPublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerPublishVolumeResponse>, Status> {
        unused()
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<pb::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerUnpublishVolumeResponse>, Status> {
        unused()
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<pb::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<pb::ValidateVolumeCapabilitiesResponse>, Status> {
        unused()
    }

    async fn list_volumes(
        &self,
        _: Request<pb::ListVolumesRequest>,
    ) -> Result<Response<pb::ListVolumesResponse>, Status> {
        unused()
    }

    async fn get_capacity(
        &self,
        _: Request<pb::GetCapacityRequest>,
    ) -> Result<Response<pb::GetCapacityResponse>, Status> {
        unused()
    }

    async fn create_snapshot(
        &self,
        _: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        unused()
    }

    async fn delete_snapshot(
        &self,
        _: Request<pb::DeleteSnapshotRequest>,
    ) -> Result<Response<pb::DeleteSnapshotResponse>, Status> {
        unused()
    }

    async fn list_snapshots(
        &self,
        _: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        unused()
    }

    async fn get_snapshot(
        &self,
        _: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<pb::GetSnapshotResponse>, Status> {
        unused()
    }

    async fn controller_expand_volume(
        &self,
        _: Request<pb::ControllerExpandVolumeRequest>,
    ) -> Result<Response<pb::ControllerExpandVolumeResponse>, Status> {
        unused()
    }

    async fn controller_get_volume(
        &self,
        _: Request<pb::ControllerGetVolumeRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeResponse>, Status> {
        unused()
    }

    async fn controller_modify_volume(
        &self,
        _: Request<pb::ControllerModifyVolumeRequest>,
    ) -> Result<Response<pb::ControllerModifyVolumeResponse>, Status> {
        unused()
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<pb::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerListVolumeHealthResponse>, Status> {
        unused()
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<pb::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeHealthResponse>, Status> {
        unused()
    }
}
