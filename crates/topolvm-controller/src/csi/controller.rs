//! CSI's Controller service: parses the request, calls [`Volumes`], builds the response.

use std::collections::HashMap;

use tonic::{Code, Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_capacity::Exemption;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_get_volume_response::VolumeStatus;
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::list_snapshots_response::Entry;
use topolvm_proto::csi::list_volumes_response;
use topolvm_proto::csi::validate_volume_capabilities_response::Confirmed;

use super::capabilities::controller_capabilities;
use super::deadline::Deadline;
use super::operation_locks::OperationLocks;
use super::request::{
    CapacityScope, ExpandVolume, GetCapacity, MutableParameters, RequestError, ValidateVolume, parse_create_volume,
    required_field, volume_context,
};
use super::response::{self, signed_bytes};
use super::snapshot_request::{parse_content_source, parse_create_snapshot, parse_page};
use super::status_code::unimplemented;
use crate::minimum_allocation::MinimumAllocation;
use crate::node_informer::NodeInformer;
use crate::volumes::{Page, Volume, VolumeError, VolumeKind, Volumes};

/// Creates, expands, lists and deletes volumes and snapshots for the sidecars.
#[derive(Clone)]
pub(crate) struct ControllerService {
    pub(super) flavor: ApiFlavor,
    pub(crate) minimums: MinimumAllocation,
    /// True if snapshots and copies are enabled.
    pub(crate) snapshots: bool,
    pub(crate) volumes: Volumes,
    /// Names of volumes and snapshots that are being created, and of groups of snapshots.
    pub(super) names: OperationLocks,
    /// Ids of volumes and snapshots that are being changed.
    ids: OperationLocks,
}

impl ControllerService {
    pub(crate) fn new(volumes: Volumes, minimums: MinimumAllocation, snapshots: bool) -> Self {
        Self {
            flavor: volumes.objects.flavor,
            minimums,
            snapshots,
            volumes,
            names: OperationLocks::default(),
            ids: OperationLocks::default(),
        }
    }

    /// Refuses a call that is not announced while snapshots are turned off.
    fn check_snapshots_enabled(&self, call: &str) -> Result<(), Status> {
        if self.snapshots { Ok(()) } else { Err(unimplemented(call)) }
    }

    /// Returns the Nodes once they are listed. An error before: the caller then keeps an earlier answer, which another
    /// answer would replace.
    fn synced_nodes(&self) -> Result<&NodeInformer, VolumeError> {
        Some(&self.volumes.node_choice.nodes).filter(|nodes| nodes.cache.is_listed()).ok_or(VolumeError::NodesNotListed)
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<pb::CreateVolumeRequest>,
    ) -> Result<Response<pb::CreateVolumeResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let request = request.into_inner();
        let wanted = parse_create_volume(&request, self.flavor, self.minimums)?;
        let source = parse_content_source(request.volume_content_source.as_ref())?;
        if source.is_some() && !self.snapshots {
            return Err(RequestError::SnapshotsDisabled.into());
        }
        let _lock = self.names.lock(&wanted.name)?;
        let volume = match source.clone() {
            None => deadline.run(Box::pin(self.volumes.create(&wanted, deadline.wait))).await?,
            Some(source) => deadline.run(Box::pin(self.volumes.create_copy(wanted, source, deadline.wait))).await?,
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
        let deadline = Deadline::from_request(&request);
        let id = required_field(&request.get_ref().volume_id, "volume_id")?;
        let _lock = self.ids.lock(id)?;
        deadline.run(self.volumes.objects.delete(VolumeKind::Volume, id, deadline.wait)).await?;
        Ok(Response::new(pb::DeleteVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<pb::ControllerExpandVolumeRequest>,
    ) -> Result<Response<pb::ControllerExpandVolumeResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let ExpandVolume { id, size, has_filesystem } = ExpandVolume::parse(request.get_ref())?;
        let _lock = self.ids.lock(&id)?;
        let bytes = deadline.run(self.volumes.expand(&id, size, deadline.wait)).await?;
        Ok(Response::new(pb::ControllerExpandVolumeResponse {
            capacity_bytes: signed_bytes(bytes),
            node_expansion_required: has_filesystem,
        }))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<pb::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<pb::ValidateVolumeCapabilitiesResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let request = request.into_inner();
        let ValidateVolume { id, objection } = ValidateVolume::parse(&request)?;
        deadline.run(self.volumes.objects.get_by_id(VolumeKind::Volume, &id)).await?;
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
        let GetCapacity { classes, scope, minimum_volume_size } =
            GetCapacity::parse(request.get_ref(), self.flavor, self.minimums);
        self.synced_nodes()?;
        let (capacity, none) = (&self.volumes.node_choice.capacity, Exemption::default());
        let (free, largest) = match scope {
            CapacityScope::Cluster => {
                let largest = capacity.with_most_free_bytes(&classes, &none).map_or(0, |node| node.free);
                (capacity.total_free_bytes(&classes), Some(largest))
            }
            // After an error external-provisioner asks again in a second, and after an answer of 0 in a minute
            CapacityScope::Segment(segment) if capacity.is_unpublished(&segment) => {
                return Err(VolumeError::NotPublished(segment).into());
            }
            // What is free on one node is the size of the largest volume
            CapacityScope::Segment(segment) => (capacity.free_bytes(&segment, &classes, &none).unwrap_or(0), None),
            CapacityScope::Elsewhere => (0, None),
        };
        // Less than the smallest volume counts as nothing: every request is raised to that before the volume is made
        let usable = if free < minimum_volume_size { 0 } else { free };
        Ok(Response::new(pb::GetCapacityResponse {
            available_capacity: signed_bytes(usable),
            maximum_volume_size: largest.map(signed_bytes),
            minimum_volume_size: Some(signed_bytes(minimum_volume_size)),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = controller_capabilities(self.snapshots);
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        self.check_snapshots_enabled("CreateSnapshot")?;
        let deadline = Deadline::from_request(&request);
        let wanted = parse_create_snapshot(request.get_ref(), self.flavor)?;
        let _lock = self.names.lock(&wanted.name)?;
        let snapshot = deadline.run(Box::pin(self.volumes.create_snapshot(wanted, deadline.wait))).await?;
        // csi-sanity compares the topology in this answer with the one that it has sent as they lie in memory, where
        // they are never equal. It is optional here, no sidecar reads it, and ListSnapshots and GetSnapshot have it
        let snapshot = pb::Snapshot { accessible_topology: Vec::new(), ..response::snapshot(self.flavor, snapshot) };
        Ok(Response::new(pb::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<pb::DeleteSnapshotRequest>,
    ) -> Result<Response<pb::DeleteSnapshotResponse>, Status> {
        self.check_snapshots_enabled("DeleteSnapshot")?;
        let deadline = Deadline::from_request(&request);
        let id = required_field(&request.get_ref().snapshot_id, "snapshot_id")?;
        let _lock = self.ids.lock(id)?;
        deadline.run(self.volumes.objects.delete_snapshot(id, deadline.wait)).await?;
        Ok(Response::new(pb::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        self.check_snapshots_enabled("ListSnapshots")?;
        let deadline = Deadline::from_request(&request);
        let pb::ListSnapshotsRequest { snapshot_id: id, source_volume_id: source, max_entries, starting_token, .. } =
            request.into_inner();
        let page = parse_page(max_entries, starting_token)?;
        let is_of =
            |snapshot: &Volume| source.is_empty() || snapshot.source.as_ref().is_some_and(|of| of.id() == source);
        let page = if id.is_empty() {
            self.volumes.objects.list(VolumeKind::Snapshot, &page, |snapshot| Some(snapshot).filter(is_of))?
        } else {
            // The API server decides whether a snapshot exists: csi-snapshotter trusts the answer forever
            let found = match deadline.run(self.volumes.objects.get_by_id(VolumeKind::Snapshot, &id)).await {
                Err(status) if status.code() == Code::NotFound => None,
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
        self.check_snapshots_enabled("GetSnapshot")?;
        let deadline = Deadline::from_request(&request);
        let id = required_field(&request.get_ref().snapshot_id, "snapshot_id")?;
        let snapshot = deadline.run(self.volumes.objects.get_by_id(VolumeKind::Snapshot, id)).await?;
        Ok(Response::new(pb::GetSnapshotResponse { snapshot: Some(response::snapshot(self.flavor, snapshot)) }))
    }

    async fn list_volumes(
        &self,
        request: Request<pb::ListVolumesRequest>,
    ) -> Result<Response<pb::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let page = parse_page(request.max_entries, request.starting_token)?;
        let entry = |volume| list_volumes_response::Entry {
            volume: Some(response::volume(self.flavor, volume, HashMap::new())),
            status: None,
        };
        let page = self.volumes.objects.list(VolumeKind::Volume, &page, |volume| Some(entry(volume)))?;
        Ok(Response::new(pb::ListVolumesResponse { entries: page.entries, next_token: page.next }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<pb::ControllerGetVolumeRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let id = required_field(&request.get_ref().volume_id, "volume_id")?;
        let volume = deadline.run(self.volumes.objects.get_by_id(VolumeKind::Volume, id)).await?;
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
        let deadline = Deadline::from_request(&request);
        let request = request.into_inner();
        let id = required_field(&request.volume_id, "volume_id")?;
        let MutableParameters { lvcreate_option_class, io_limits } =
            MutableParameters::parse(&request.mutable_parameters, self.flavor)?;
        let _lock = self.ids.lock(id)?;
        deadline.run(self.volumes.modify(id, lvcreate_option_class, &io_limits)).await?;
        Ok(Response::new(pb::ControllerModifyVolumeResponse {}))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<pb::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerListVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let page = parse_page(request.max_entries, request.starting_token)?;
        let nodes = self.synced_nodes()?;
        // Volumes without a health error are left out
        let entry =
            |volume| Some(response::volume_health(nodes, volume)).filter(|health| !health.health_statuses.is_empty());
        let page = self.volumes.objects.list(VolumeKind::Volume, &page, entry)?;
        Ok(Response::new(pb::ControllerListVolumeHealthResponse { entries: page.entries, next_token: page.next }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<pb::ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<pb::ControllerGetVolumeHealthResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let id = required_field(&request.get_ref().volume_id, "volume_id")?;
        let nodes = self.synced_nodes()?;
        let volume = deadline.run(self.volumes.objects.get_by_id(VolumeKind::Volume, id)).await?;
        Ok(Response::new(pb::ControllerGetVolumeHealthResponse {
            volume_health: Some(response::volume_health(nodes, volume)),
        }))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<pb::ControllerPublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerPublishVolumeResponse>, Status> {
        Err(unimplemented("ControllerPublishVolume"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<pb::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<pb::ControllerUnpublishVolumeResponse>, Status> {
        Err(unimplemented("ControllerUnpublishVolume"))
    }
}
