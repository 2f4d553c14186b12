//! The calls of the Controller service, with their deadline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Type as Kind, rpc};
use topolvm_proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerModifyVolumeRequest,
    CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, ListSnapshotsRequest,
    Snapshot, Volume, VolumeCapability,
};
use topolvm_runtime::grpc::RpcMetrics;

use super::call::{CallError, Caller, Secrets};

/// Capabilities of the Controller service that decide about requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Distinguishes volumes for one pod from those for several pods of a node.
    pub single_node_multi_writer: bool,
    /// Takes and restores snapshots.
    pub snapshots: bool,
    /// Clones volumes.
    pub clones: bool,
}

/// A volume after its expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// Its size.
    pub bytes: u64,
    /// True if the kubelet has to grow the filesystem.
    pub needs_node: bool,
}

/// The Controller service.
#[expect(missing_debug_implementations, reason = "the service has none")]
#[derive(Clone)]
pub struct CsiController {
    service: Arc<dyn Controller>,
    caller: Caller,
}

impl CsiController {
    /// Makes the service, of which each call may take so long.
    pub fn new(service: Arc<dyn Controller>, timeout: Duration, metrics: RpcMetrics) -> Self {
        Self { service, caller: Caller { timeout, metrics } }
    }

    /// Returns what the service can do.
    pub async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let announced = self.announced().await?;
        let has = |kind| announced.contains(&kind);
        Ok(Capabilities {
            single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
            snapshots: has(rpc::Type::CreateDeleteSnapshot),
            clones: has(rpc::Type::CloneVolume),
        })
    }

    /// Returns whether the service lists snapshots.
    pub async fn lists_snapshots(&self) -> Result<bool, CallError> {
        Ok(self.announced().await?.contains(&rpc::Type::ListSnapshots))
    }

    async fn announced(&self) -> Result<Vec<rpc::Type>, CallError> {
        let request = ControllerGetCapabilitiesRequest {};
        let answer = self
            .caller
            .call("ControllerGetCapabilities", request, |request| self.service.controller_get_capabilities(request))
            .await?;
        let kinds = answer.capabilities.into_iter().filter_map(|capability| match capability.r#type? {
            Kind::Rpc(announced) => Some(announced.r#type()),
        });
        Ok(kinds.collect())
    }

    /// Creates a volume, or returns the existing one of this name.
    pub async fn create_volume(&self, request: CreateVolumeRequest) -> Result<Volume, CallError> {
        let answer = self.caller.call("CreateVolume", request, |request| self.service.create_volume(request)).await?;
        answer.volume.ok_or_else(|| CallError::new(Code::Unavailable, "CreateVolume returned no volume"))
    }

    /// Deletes a volume; one that does not exist is deleted.
    pub async fn delete_volume(&self, id: &str, secrets: Secrets) -> Result<(), CallError> {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), secrets };
        self.caller.call("DeleteVolume", request, |request| self.service.delete_volume(request)).await.map(drop)
    }

    /// Expands a volume to at least so many bytes.
    pub async fn expand_volume(
        &self,
        id: &str,
        bytes: u64,
        capability: VolumeCapability,
        secrets: Secrets,
    ) -> Result<Expanded, CallError> {
        let required_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            secrets,
            volume_capability: Some(capability),
        };
        let answer = self
            .caller
            .call("ControllerExpandVolume", request, |request| self.service.controller_expand_volume(request))
            .await?;
        let bytes = u64::try_from(answer.capacity_bytes).unwrap_or_default();
        Ok(Expanded { bytes, needs_node: answer.node_expansion_required })
    }

    /// Applies the parameters of a VolumeAttributesClass to a volume.
    pub async fn modify_volume(
        &self,
        id: &str,
        mutable_parameters: HashMap<String, String>,
        secrets: Secrets,
    ) -> Result<(), CallError> {
        let request = ControllerModifyVolumeRequest { volume_id: id.to_owned(), secrets, mutable_parameters };
        self.caller
            .call("ControllerModifyVolume", request, |request| self.service.controller_modify_volume(request))
            .await
            .map(drop)
    }

    /// Creates a snapshot, or returns the existing one of this name.
    pub async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot, CallError> {
        let answer =
            self.caller.call("CreateSnapshot", request, |request| self.service.create_snapshot(request)).await?;
        answer.snapshot.ok_or_else(|| CallError::new(Code::Unavailable, "CreateSnapshot returned no snapshot"))
    }

    /// Deletes a snapshot; one that does not exist is deleted.
    pub async fn delete_snapshot(&self, id: &str, secrets: Secrets) -> Result<(), CallError> {
        let request = DeleteSnapshotRequest { snapshot_id: id.to_owned(), secrets };
        self.caller.call("DeleteSnapshot", request, |request| self.service.delete_snapshot(request)).await.map(drop)
    }

    /// Lists the snapshot with this id; `None` if it does not exist.
    pub async fn find_snapshot(&self, id: &str, secrets: Secrets) -> Result<Option<Snapshot>, CallError> {
        let request = ListSnapshotsRequest { snapshot_id: id.to_owned(), secrets, ..ListSnapshotsRequest::default() };
        let answer = self.caller.call("ListSnapshots", request, |request| self.service.list_snapshots(request)).await?;
        Ok(answer.entries.into_iter().find_map(|entry| entry.snapshot))
    }
}
