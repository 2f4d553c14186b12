//! CSI Controller and GroupController services that record requests and answer as a test says.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type, rpc};
use topolvm_proto::csi::group_controller_server::GroupController;
use topolvm_proto::csi::list_snapshots_response::Entry;
use topolvm_proto::csi::{self as pb};

/// Failure of a call.
pub(super) enum Fault {
    Refuse(Code, &'static str),
    Hang,
}

/// A call that the driver has got.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    Create(Box<pb::CreateSnapshotRequest>),
    Delete(pb::DeleteSnapshotRequest),
    List(Box<pb::ListSnapshotsRequest>),
    CreateGroup(pb::CreateVolumeGroupSnapshotRequest),
    DeleteGroup(pb::DeleteVolumeGroupSnapshotRequest),
    GetGroup(pb::GetVolumeGroupSnapshotRequest),
}

/// The driver. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct FakeDriver {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    faults: VecDeque<Fault>,
    before_answer: Option<Box<dyn FnOnce() + Send>>,
    /// Number of answers in which the snapshot is not ready.
    not_ready: usize,
    lists_nothing: bool,
    has_no_snapshots: bool,
    /// CSI id of the group that listed snapshots belong to.
    group: String,
}

impl FakeDriver {
    pub(super) fn fail_next(&self, n: usize, code: Code, message: &'static str) {
        self.state.lock().faults.extend((0..n).map(|_| Fault::Refuse(code, message)));
    }

    pub(super) fn hang_next(&self) {
        self.state.lock().faults.push_back(Fault::Hang);
    }

    /// Does this during the next call.
    pub(super) fn during_next(&self, action: impl FnOnce() + Send + 'static) {
        self.state.lock().before_answer = Some(Box::new(action));
    }

    /// Shows snapshots that are not ready in the next answers.
    pub(super) fn show_not_ready(&self, answers: usize) {
        self.state.lock().not_ready = answers;
    }

    /// Does not announce ListSnapshots.
    pub(super) fn list_nothing(&self) {
        self.state.lock().lists_nothing = true;
    }

    /// Lists no snapshot from now on, or each one that is asked for.
    pub(super) fn set_empty(&self, is_empty: bool) {
        self.state.lock().has_no_snapshots = is_empty;
    }

    /// Lists snapshots as members of this group.
    pub(super) fn list_in_group(&self, group: &str) {
        self.state.lock().group = group.to_owned();
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// The names of the calls, each with the snapshot that it is about.
    pub(super) fn summary(&self) -> Vec<String> {
        let describe = |call: &Call| match call {
            Call::Create(request) => format!("create {}", request.name),
            Call::Delete(request) => format!("delete {}", request.snapshot_id),
            Call::List(request) => format!("list {}", request.snapshot_id),
            Call::CreateGroup(request) => format!("create {}", request.name),
            Call::DeleteGroup(request) => format!("delete {}", request.group_snapshot_id),
            Call::GetGroup(request) => format!("get {}", request.group_snapshot_id),
        };
        self.state.lock().calls.iter().map(describe).collect()
    }

    async fn take(&self, call: Call) -> Result<(), Status> {
        let (fault, action) = {
            let mut state = self.state.lock();
            state.calls.push(call);
            (state.faults.pop_front(), state.before_answer.take())
        };
        if let Some(action) = action {
            action();
        }
        match fault {
            Some(Fault::Refuse(code, message)) => Err(Status::new(code, message)),
            Some(Fault::Hang) => std::future::pending().await,
            None => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(())
            }
        }
    }

    /// Returns a snapshot of 1 GiB from the first second of 1970.
    fn snapshot(&self, id: String) -> pb::Snapshot {
        let mut state = self.state.lock();
        let ready_to_use = state.not_ready == 0;
        state.not_ready = state.not_ready.saturating_sub(1);
        pb::Snapshot {
            snapshot_id: id,
            size_bytes: 1 << 30,
            creation_time: Some(prost_types::Timestamp { seconds: 1, nanos: 5 }),
            ready_to_use,
            group_snapshot_id: state.group.clone(),
            ..pb::Snapshot::default()
        }
    }

    /// Returns a group of snapshots with these CSI ids and volumes.
    fn group(&self, id: String, members: Vec<(String, String)>) -> pb::VolumeGroupSnapshot {
        let first = self.snapshot(String::new());
        let snapshots = members.into_iter().map(|(snapshot_id, source_volume_id)| pb::Snapshot {
            snapshot_id,
            source_volume_id,
            group_snapshot_id: id.clone(),
            ..first.clone()
        });
        let (snapshots, ready_to_use) = (snapshots.collect(), first.ready_to_use);
        pb::VolumeGroupSnapshot { group_snapshot_id: id, snapshots, creation_time: first.creation_time, ready_to_use }
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// Methods that the snapshotter never calls, in the form into which `async_trait` brings the others: it does not see
/// what a macro writes.
macro_rules! unimplemented_calls {
    ($($name:ident: $request:ident => $response:ident),+ $(,)?) => {$(
        fn $name<'a, 'b>(&'a self, _: Request<pb::$request>) -> Answer<'b, pb::$response>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        }
    )+};
}

#[tonic::async_trait]
impl Controller for FakeDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let lists_nothing = self.state.lock().lists_nothing;
        let announced = if lists_nothing { rpc::Type::CreateDeleteSnapshot } else { rpc::Type::ListSnapshots };
        let kind = Type::Rpc(Rpc { r#type: announced.into() });
        let capabilities = vec![pb::ControllerServiceCapability { r#type: Some(kind) }];
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let id = format!("id-of-{}", request.name);
        self.take(Call::Create(Box::new(request))).await?;
        Ok(Response::new(pb::CreateSnapshotResponse { snapshot: Some(self.snapshot(id)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<pb::DeleteSnapshotRequest>,
    ) -> Result<Response<pb::DeleteSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.take(Call::Delete(request)).await?;
        Ok(Response::new(pb::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let id = request.snapshot_id.clone();
        self.take(Call::List(Box::new(request))).await?;
        let is_empty = self.state.lock().has_no_snapshots;
        let entry = (!is_empty).then(|| Entry { snapshot: Some(self.snapshot(id)) });
        let entries = entry.into_iter().collect();
        Ok(Response::new(pb::ListSnapshotsResponse { entries, next_token: String::new() }))
    }

    unimplemented_calls! {
        create_volume: CreateVolumeRequest => CreateVolumeResponse,
        delete_volume: DeleteVolumeRequest => DeleteVolumeResponse,
        controller_publish_volume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse,
        controller_unpublish_volume: ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse,
        validate_volume_capabilities: ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse,
        list_volumes: ListVolumesRequest => ListVolumesResponse,
        controller_list_volume_health: ControllerListVolumeHealthRequest => ControllerListVolumeHealthResponse,
        controller_get_volume_health: ControllerGetVolumeHealthRequest => ControllerGetVolumeHealthResponse,
        get_capacity: GetCapacityRequest => GetCapacityResponse,
        controller_expand_volume: ControllerExpandVolumeRequest => ControllerExpandVolumeResponse,
        controller_modify_volume: ControllerModifyVolumeRequest => ControllerModifyVolumeResponse,
        get_snapshot: GetSnapshotRequest => GetSnapshotResponse,
        controller_get_volume: ControllerGetVolumeRequest => ControllerGetVolumeResponse,
    }
}

#[tonic::async_trait]
impl GroupController for FakeDriver {
    async fn create_volume_group_snapshot(
        &self,
        request: Request<pb::CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::CreateVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let id = format!("id-of-{}", request.name);
        let volumes = request.source_volume_ids.iter();
        let members = volumes.map(|volume| (format!("of-{volume}"), volume.clone())).collect();
        self.take(Call::CreateGroup(request)).await?;
        let group_snapshot = Some(self.group(id, members));
        Ok(Response::new(pb::CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<pb::DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::DeleteVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        self.take(Call::DeleteGroup(request)).await?;
        Ok(Response::new(pb::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<pb::GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<pb::GetVolumeGroupSnapshotResponse>, Status> {
        let request = request.into_inner();
        let id = request.group_snapshot_id.clone();
        let members = request.snapshot_ids.iter().map(|id| (id.clone(), format!("volume-of-{id}"))).collect();
        self.take(Call::GetGroup(request)).await?;
        let group_snapshot = Some(self.group(id, members));
        Ok(Response::new(pb::GetVolumeGroupSnapshotResponse { group_snapshot }))
    }

    unimplemented_calls! {
        group_controller_get_capabilities:
            GroupControllerGetCapabilitiesRequest => GroupControllerGetCapabilitiesResponse,
    }
}
