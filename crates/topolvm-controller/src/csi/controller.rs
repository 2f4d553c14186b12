//! CSI's Controller service: translate, call, translate.

use tonic::{Code, Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type, rpc};
use topolvm_proto::csi::validate_volume_capabilities_response::Confirmed;
use topolvm_runtime::grpc::{GrpcCode, into_status};
use topolvm_runtime::{InFlight, Turn};

use super::deadline::Deadline;
use super::request::{ExpandVolume, GetCapacity, RequestError, Scope, ValidateVolume, create_volume, required};
use super::topology;
use crate::MinimumAllocation;
use crate::volumes::{Error, Volume, Volumes};

/// Makes, grows, removes and counts volumes for the sidecars.
#[derive(Clone)]
pub(crate) struct ControllerService {
    flavor: ApiFlavor,
    minimums: MinimumAllocation,
    volumes: Volumes,
    /// Names of volumes that are being made.
    making: InFlight,
    /// Ids of volumes that are being changed.
    changing: InFlight,
}

/// Somebody works on the volume already. The sidecars ask again after `ABORTED`.
#[derive(Debug, thiserror::Error)]
#[error("another call for volume {0} has not finished yet")]
struct Busy(String);

impl GrpcCode for Busy {
    fn code(&self) -> Code {
        Code::Aborted
    }
}

/// What the capabilities announce, and only that, is implemented.
const CAPABILITIES: [rpc::Type; 3] = [rpc::Type::CreateDeleteVolume, rpc::Type::GetCapacity, rpc::Type::ExpandVolume];

impl ControllerService {
    pub(crate) fn new(volumes: Volumes, minimums: MinimumAllocation) -> Self {
        Self { flavor: volumes.flavor, minimums, volumes, making: InFlight::default(), changing: InFlight::default() }
    }

    fn changing(&self, id: &str) -> Result<Turn, Busy> {
        self.changing.start(id).ok_or_else(|| Busy(id.to_owned()))
    }

    fn volume(&self, volume: Volume) -> pb::Volume {
        pb::Volume {
            capacity_bytes: signed(volume.bytes),
            volume_id: volume.id,
            // Of the volume, not of the request: a repeated request may prefer another node by now
            accessible_topology: vec![topology::of_node(self.flavor, volume.node)],
            ..pb::Volume::default()
        }
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<pb::CreateVolumeRequest>,
    ) -> Result<Response<pb::CreateVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let wanted = create_volume(request.get_ref(), self.flavor, self.minimums)?;
        let _turn = self.making.start(&wanted.name).ok_or_else(|| Busy(wanted.name.clone()))?;
        let volume = deadline.bound(Box::pin(self.volumes.ensure(&wanted, deadline.wait))).await?;
        Ok(Response::new(pb::CreateVolumeResponse { volume: Some(self.volume(volume)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<pb::DeleteVolumeRequest>,
    ) -> Result<Response<pb::DeleteVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().volume_id, "volume_id")?;
        let _turn = self.changing(id)?;
        deadline.bound(self.volumes.remove(id, deadline.wait)).await?;
        Ok(Response::new(pb::DeleteVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<pb::ControllerExpandVolumeRequest>,
    ) -> Result<Response<pb::ControllerExpandVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let ExpandVolume { id, bytes, has_filesystem } = request.into_inner().try_into()?;
        let _turn = self.changing(&id)?;
        let bytes = deadline.bound(self.volumes.expand(&id, bytes, deadline.wait)).await?;
        Ok(Response::new(pb::ControllerExpandVolumeResponse {
            capacity_bytes: signed(bytes),
            node_expansion_required: has_filesystem,
        }))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<pb::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<pb::ValidateVolumeCapabilitiesResponse>, Status> {
        let deadline = Deadline::of(&request);
        let request = request.into_inner();
        let ValidateVolume { id, objection } = (&request).try_into()?;
        let found = deadline.bound(self.volumes.find(&id)).await?;
        if found.is_none() {
            return Err(Error::Unknown(id).into());
        }
        let confirmed = objection.is_none().then_some(Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        });
        Ok(Response::new(pb::ValidateVolumeCapabilitiesResponse {
            confirmed,
            message: objection.map(|objection| objection.to_string()).unwrap_or_default(),
        }))
    }

    async fn get_capacity(
        &self,
        request: Request<pb::GetCapacityRequest>,
    ) -> Result<Response<pb::GetCapacityResponse>, Status> {
        let GetCapacity { device_class, scope } = GetCapacity::parse(request.get_ref(), self.flavor);
        let nodes = &self.volumes.nodes;
        if !nodes.is_synced() {
            // An error leaves what external-provisioner has published; a zero would replace it
            return Err(Error::NodesUnknown.into());
        }
        let free = match scope {
            Scope::Cluster => nodes.total_free(&device_class),
            Scope::Segment(segment) => nodes.free_at(&segment, &device_class),
            Scope::Elsewhere => 0,
        };
        Ok(Response::new(pb::GetCapacityResponse {
            available_capacity: signed(free),
            ..pb::GetCapacityResponse::default()
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let capability =
            |kind: rpc::Type| pb::ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).to_vec() }))
    }

    async fn create_snapshot(
        &self,
        _: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        Err(not_announced("CreateSnapshot"))
    }

    async fn delete_snapshot(
        &self,
        _: Request<pb::DeleteSnapshotRequest>,
    ) -> Result<Response<pb::DeleteSnapshotResponse>, Status> {
        Err(not_announced("DeleteSnapshot"))
    }

    async fn list_snapshots(
        &self,
        _: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        Err(not_announced("ListSnapshots"))
    }

    async fn get_snapshot(
        &self,
        _: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<pb::GetSnapshotResponse>, Status> {
        Err(not_announced("GetSnapshot"))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<pb::ControllerPublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerPublishVolumeResponse>, Status> {
        Err(not_announced("ControllerPublishVolume"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<pb::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerUnpublishVolumeResponse>, Status> {
        Err(not_announced("ControllerUnpublishVolume"))
    }

    async fn list_volumes(
        &self,
        _: Request<pb::ListVolumesRequest>,
    ) -> Result<Response<pb::ListVolumesResponse>, Status> {
        Err(not_announced("ListVolumes"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<pb::ControllerGetVolumeRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeResponse>, Status> {
        Err(not_announced("ControllerGetVolume"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<pb::ControllerModifyVolumeRequest>,
    ) -> Result<Response<pb::ControllerModifyVolumeResponse>, Status> {
        Err(not_announced("ControllerModifyVolume"))
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<pb::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerListVolumeHealthResponse>, Status> {
        Err(not_announced("ControllerListVolumeHealth"))
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<pb::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeHealthResponse>, Status> {
        Err(not_announced("ControllerGetVolumeHealth"))
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        into_status(error)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        into_status(error)
    }
}

impl From<Busy> for Status {
    fn from(error: Busy) -> Self {
        into_status(error)
    }
}

/// For calls that the capabilities do not announce, so that no sidecar makes them.
fn not_announced(call: &str) -> Status {
    Status::unimplemented(format!("{call} is not supported by this driver"))
}

/// CSI counts bytes in a signed number.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
