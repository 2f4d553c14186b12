//! The calls of the GroupController service, with their deadline.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use topolvm_proto::csi::group_controller_server::GroupController;
use topolvm_proto::csi::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    VolumeGroupSnapshot,
};
use topolvm_runtime::grpc::RpcMetrics;

use super::call::{CallError, Caller, Secrets};

/// The GroupController service.
#[expect(missing_debug_implementations, reason = "the service has none")]
#[derive(Clone)]
pub struct CsiGroupController {
    service: Arc<dyn GroupController>,
    caller: Caller,
}

impl CsiGroupController {
    /// Makes the service, of which each call may take so long.
    pub fn new(service: Arc<dyn GroupController>, timeout: Duration, metrics: RpcMetrics) -> Self {
        Self { service, caller: Caller { timeout, metrics } }
    }

    /// Creates a group of snapshots, or returns the existing one of this name.
    pub async fn create_group_snapshot(
        &self,
        request: CreateVolumeGroupSnapshotRequest,
    ) -> Result<VolumeGroupSnapshot, CallError> {
        let call = |request| self.service.create_volume_group_snapshot(request);
        let method = "CreateVolumeGroupSnapshot";
        group_in(self.caller.call(method, request, call).await?.group_snapshot, method)
    }

    /// Deletes a group of snapshots; one that does not exist is deleted.
    pub async fn delete_group_snapshot(
        &self,
        id: &str,
        snapshot_ids: Vec<String>,
        secrets: Secrets,
    ) -> Result<(), CallError> {
        let request = DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id.to_owned(), snapshot_ids, secrets };
        let call = |request| self.service.delete_volume_group_snapshot(request);
        self.caller.call("DeleteVolumeGroupSnapshot", request, call).await.map(drop)
    }

    /// Returns the group of snapshots with this id.
    pub async fn get_group_snapshot(
        &self,
        id: &str,
        snapshot_ids: Vec<String>,
        secrets: Secrets,
    ) -> Result<VolumeGroupSnapshot, CallError> {
        let request = GetVolumeGroupSnapshotRequest { group_snapshot_id: id.to_owned(), snapshot_ids, secrets };
        let call = |request| self.service.get_volume_group_snapshot(request);
        let method = "GetVolumeGroupSnapshot";
        group_in(self.caller.call(method, request, call).await?.group_snapshot, method)
    }
}

/// Returns the group in an answer, of which gRPC allows that it has none.
fn group_in(group: Option<VolumeGroupSnapshot>, call: &str) -> Result<VolumeGroupSnapshot, CallError> {
    group.ok_or_else(|| CallError::new(Code::Unavailable, format!("{call} returned no group of snapshots")))
}
