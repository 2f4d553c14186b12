//! CSI's Controller service: translate, call, translate.

use std::collections::HashMap;

use tonic::{Code, Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_get_volume_response::VolumeStatus;
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::list_snapshots_response::Entry;
use topolvm_proto::csi::list_volumes_response;
use topolvm_proto::csi::validate_volume_capabilities_response::Confirmed;
use topolvm_runtime::grpc::{GrpcCode, into_status};
use topolvm_runtime::{InFlight, Turn};

use super::capabilities;
use super::deadline::Deadline;
use super::request::snapshots::{ListSnapshots, content_source, create_snapshot, paging};
use super::request::{
    ExpandVolume, GetCapacity, RequestError, Scope, ValidateVolume, create_volume, mutable, required, volume_context,
};
use super::response::{self, signed};
use crate::MinimumAllocation;
use crate::node_informer::Nodes;
use crate::volumes::{Error, Kind, Page, Volume, Volumes};

/// Makes, grows, lists and removes volumes and snapshots for the sidecars.
#[derive(Clone)]
pub(crate) struct ControllerService {
    flavor: ApiFlavor,
    minimums: MinimumAllocation,
    /// Whether to take snapshots and make copies.
    pub(crate) snapshots: bool,
    volumes: Volumes,
    /// Names of volumes and snapshots that are being made.
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

impl ControllerService {
    pub(crate) fn new(volumes: Volumes, minimums: MinimumAllocation) -> Self {
        Self {
            flavor: volumes.flavor,
            minimums,
            snapshots: true,
            volumes,
            making: InFlight::default(),
            changing: InFlight::default(),
        }
    }

    fn making(&self, name: &str) -> Result<Turn, Busy> {
        tracing::Span::current().record("volume", name);
        self.making.start(name).ok_or_else(|| Busy(name.to_owned()))
    }

    fn changing(&self, id: &str) -> Result<Turn, Busy> {
        tracing::Span::current().record("volume", id);
        self.changing.start(id).ok_or_else(|| Busy(id.to_owned()))
    }

    /// Refuses what is not announced where snapshots are turned off.
    fn snapshots_on(&self, call: &str) -> Result<(), Status> {
        if self.snapshots { Ok(()) } else { Err(not_announced(call)) }
    }

    /// Before the Nodes are known, an error: it leaves what was told before, where an answer would replace it.
    fn nodes(&self) -> Result<&Nodes, Error> {
        Some(&self.volumes.nodes).filter(|nodes| nodes.is_synced()).ok_or(Error::NodesUnknown)
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<pb::CreateVolumeRequest>,
    ) -> Result<Response<pb::CreateVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let request = request.into_inner();
        let wanted = create_volume(&request, self.flavor, self.minimums)?;
        let source = content_source(request.volume_content_source.as_ref())?;
        if source.is_some() && !self.snapshots {
            return Err(RequestError::Source.into());
        }
        let _turn = self.making(&wanted.name)?;
        let volume = match source.clone() {
            None => deadline.bound(Box::pin(self.volumes.ensure(&wanted, deadline.wait))).await?,
            Some(source) => deadline.bound(Box::pin(self.volumes.ensure_copy(wanted, source, deadline.wait))).await?,
        };
        // As the caller named it: external-provisioner deletes a volume whose answer lacks the source
        let volume = Volume { source, ..volume };
        let context = volume_context(&request.parameters, self.flavor);
        Ok(Response::new(pb::CreateVolumeResponse { volume: Some(response::volume(self.flavor, volume, context)) }))
    }

    async fn delete_volume(
        &self,
        request: Request<pb::DeleteVolumeRequest>,
    ) -> Result<Response<pb::DeleteVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().volume_id, "volume_id")?;
        let _turn = self.changing(id)?;
        deadline.bound(self.volumes.remove(Kind::Volume, id, deadline.wait)).await?;
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
        deadline.bound(self.volumes.look_up(Kind::Volume, &id)).await?;
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
        let GetCapacity { device_class, scope, smallest } =
            GetCapacity::parse(request.get_ref(), self.flavor, self.minimums);
        let nodes = self.nodes()?;
        let free = match scope {
            Scope::Cluster => nodes.total_free(&device_class),
            Scope::Segment(segment) => nodes.free_at(&segment, &device_class),
            Scope::Elsewhere => 0,
        };
        // Less than the smallest volume is nothing: what is asked for is raised to that before it is made
        let usable = if free < smallest { 0 } else { free };
        Ok(Response::new(pb::GetCapacityResponse {
            available_capacity: signed(usable),
            minimum_volume_size: Some(signed(smallest)),
            ..pb::GetCapacityResponse::default()
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = capabilities::controller(self.snapshots);
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        self.snapshots_on("CreateSnapshot")?;
        let deadline = Deadline::of(&request);
        let wanted = create_snapshot(request.get_ref(), self.flavor)?;
        let _turn = self.making(&wanted.name)?;
        let snapshot = deadline.bound(Box::pin(self.volumes.ensure_snapshot(wanted, deadline.wait))).await?;
        // csi-sanity compares the place in this answer with the one that it has sent as they lie in memory, where they are never equal. It is
        // optional here, no sidecar reads it, and ListSnapshots and GetSnapshot tell it
        let snapshot = pb::Snapshot { accessible_topology: Vec::new(), ..response::snapshot(self.flavor, snapshot) };
        Ok(Response::new(pb::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<pb::DeleteSnapshotRequest>,
    ) -> Result<Response<pb::DeleteSnapshotResponse>, Status> {
        self.snapshots_on("DeleteSnapshot")?;
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().snapshot_id, "snapshot_id")?;
        let _turn = self.changing(id)?;
        deadline.bound(self.volumes.remove(Kind::Snapshot, id, deadline.wait)).await?;
        Ok(Response::new(pb::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        self.snapshots_on("ListSnapshots")?;
        let deadline = Deadline::of(&request);
        let ListSnapshots { id, source, paging } = request.into_inner().try_into()?;
        let is_of =
            |snapshot: &Volume| source.is_empty() || snapshot.source.as_ref().is_some_and(|of| of.id() == source);
        let page = if id.is_empty() {
            self.volumes.list(Kind::Snapshot, &paging, |snapshot| Some(snapshot).filter(is_of))?
        } else {
            // Whether a snapshot exists is asked of the API server: csi-snapshotter believes the answer for ever
            let found = match deadline.bound(self.volumes.look_up(Kind::Snapshot, &id)).await {
                Err(unknown) if unknown.code() == Code::NotFound => None,
                found => Some(found?),
            };
            Page { entries: found.into_iter().filter(is_of).collect(), next: String::new() }
        };
        let entry = |snapshot| Entry { snapshot: Some(response::snapshot(self.flavor, snapshot)) };
        let entries = page.entries.into_iter().map(entry).collect();
        Ok(Response::new(pb::ListSnapshotsResponse { entries, next_token: page.next }))
    }

    async fn get_snapshot(
        &self,
        request: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<pb::GetSnapshotResponse>, Status> {
        self.snapshots_on("GetSnapshot")?;
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().snapshot_id, "snapshot_id")?;
        let snapshot = deadline.bound(self.volumes.look_up(Kind::Snapshot, id)).await?;
        Ok(Response::new(pb::GetSnapshotResponse { snapshot: Some(response::snapshot(self.flavor, snapshot)) }))
    }

    async fn list_volumes(
        &self,
        request: Request<pb::ListVolumesRequest>,
    ) -> Result<Response<pb::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let paging = paging(request.max_entries, request.starting_token)?;
        let entry = |volume| list_volumes_response::Entry {
            volume: Some(response::volume(self.flavor, volume, HashMap::new())),
            status: None,
        };
        let page = self.volumes.list(Kind::Volume, &paging, |volume| Some(entry(volume)))?;
        Ok(Response::new(pb::ListVolumesResponse { entries: page.entries, next_token: page.next }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<pb::ControllerGetVolumeRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().volume_id, "volume_id")?;
        let volume = deadline.bound(self.volumes.look_up(Kind::Volume, id)).await?;
        Ok(Response::new(pb::ControllerGetVolumeResponse {
            volume: Some(response::volume(self.flavor, volume, HashMap::new())),
            // CSI wants the field; what is in it counts only where attaching is announced
            status: Some(VolumeStatus::default()),
        }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<pb::ControllerModifyVolumeRequest>,
    ) -> Result<Response<pb::ControllerModifyVolumeResponse>, Status> {
        let deadline = Deadline::of(&request);
        let request = request.into_inner();
        let id = required(&request.volume_id, "volume_id")?;
        let option_class = mutable(&request.mutable_parameters, self.flavor)?;
        let _turn = self.changing(id)?;
        deadline.bound(self.volumes.modify(id, option_class)).await?;
        Ok(Response::new(pb::ControllerModifyVolumeResponse {}))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<pb::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerListVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let paging = paging(request.max_entries, request.starting_token)?;
        let nodes = self.nodes()?;
        // Those without trouble are left out
        let entry = |volume| Some(response::health(nodes, volume)).filter(|health| !health.health_statuses.is_empty());
        let page = self.volumes.list(Kind::Volume, &paging, entry)?;
        Ok(Response::new(pb::ControllerListVolumeHealthResponse { entries: page.entries, next_token: page.next }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<pb::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeHealthResponse>, Status> {
        let deadline = Deadline::of(&request);
        let id = required(&request.get_ref().volume_id, "volume_id")?;
        let nodes = self.nodes()?;
        let volume = deadline.bound(self.volumes.look_up(Kind::Volume, id)).await?;
        Ok(Response::new(pb::ControllerGetVolumeHealthResponse {
            volume_health: Some(response::health(nodes, volume)),
        }))
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
