//! CSI's GroupController service: snapshots of several volumes with the contents of one moment.

use tonic::{Request, Response, Status};
use topolvm_proto::csi as pb;
use topolvm_proto::csi::group_controller_server::GroupController;
use topolvm_proto::csi::group_controller_service_capability::{Rpc, Type as Kind, rpc};

use super::controller::ControllerService;
use super::deadline::Deadline;
use super::request::{RequestError, required_field};
use super::response;
use super::snapshot_request::parse_create_group;
use super::status_code::is_final_for_group;

#[tonic::async_trait]
impl GroupController for ControllerService {
    /// The capability is announced also while snapshots are disabled: groups that exist can be read and deleted, and
    /// csi-sanity accepts no empty answer.
    async fn group_controller_get_capabilities(
        &self,
        _: Request<pb::GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::GroupControllerGetCapabilitiesResponse>, Status> {
        let kind = Kind::Rpc(Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() });
        let capabilities = vec![pb::GroupControllerServiceCapability { r#type: Some(kind) }];
        Ok(Response::new(pb::GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<pb::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::CreateVolumeGroupSnapshotResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let wanted = parse_create_group(request.get_ref())?;
        if !self.snapshots {
            return Err(RequestError::SnapshotsDisabled.into());
        }
        let id = wanted.id.clone();
        let _lock = self.names.lock(&id)?;
        match deadline.run(Box::pin(self.volumes.create_snapshot_group(wanted, deadline.wait))).await {
            Ok(members) => {
                let group_snapshot = Some(response::snapshot_group(self.flavor, id, members));
                Ok(Response::new(pb::CreateVolumeGroupSnapshotResponse { group_snapshot }))
            }
            Err(status) => {
                if is_final_for_group(status.code()) {
                    deadline.run(self.volumes.discard_snapshot_group(&id)).await?;
                }
                Err(status)
            }
        }
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<pb::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::DeleteVolumeGroupSnapshotResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let pb::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, .. } = request.get_ref();
        let id = required_field(id, "group_snapshot_id")?;
        let _lock = self.names.lock(id)?;
        let deletion = self.volumes.delete_snapshot_group(id, snapshot_ids, deadline.wait);
        deadline.run(Box::pin(deletion)).await?;
        Ok(Response::new(pb::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<pb::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::GetVolumeGroupSnapshotResponse>, Status> {
        let deadline = Deadline::from_request(&request);
        let pb::GetVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, .. } = request.get_ref();
        let id = required_field(id, "group_snapshot_id")?;
        let members = deadline.run(self.volumes.get_snapshot_group(id, snapshot_ids)).await?;
        let group_snapshot = Some(response::snapshot_group(self.flavor, id.to_owned(), members));
        Ok(Response::new(pb::GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}
