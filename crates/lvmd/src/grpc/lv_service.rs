//! `proto.LVService`.

use lvm::Host;
use lvmd_engine::{Engine, Error, process_count};
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::lv_service_server::LvService;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvResponse, CreateLvSnapshotRequest, CreateLvSnapshotResponse, CreateLvSnapshotsRequest,
    CreateLvSnapshotsResponse, Empty, RemoveLvRequest, ResizeLvRequest, ResizeLvResponse,
};
use topolvm_runtime::grpc::into_status;
use tracing::Span;

use super::invalid_request::InvalidRequest;
use super::message;

/// Characters of a name that are logged; LVM's own names are no longer.
const MAX_LOGGED_NAME: usize = 128;

pub(super) struct LvApi<R>(pub(super) Engine<R>);

/// Adds the volume, its class and its group to the log line of the call.
pub(super) fn record_target<R: Host>(engine: &Engine<R>, class: &str, volume: &str) {
    let shown = |name: &str| name.chars().take(MAX_LOGGED_NAME).collect::<String>();
    let span = Span::current();
    span.record("volume", shown(volume));
    match engine.class(class) {
        Ok(class) => {
            span.record("device_class", &class.name);
            span.record("volume_group", tracing::field::display(&class.volume_group));
        }
        Err(_) => {
            span.record("device_class", shown(class));
        }
    }
}

/// Runs a change, and adds the number of its LVM processes to the log line of the call.
pub(super) async fn run_change<T>(change: impl Future<Output = Result<T, Error>>) -> Result<T, Status> {
    let (result, processes) = process_count::count(change).await;
    Span::current().record("lvm_processes", processes);
    result.map_err(into_status)
}

#[tonic::async_trait]
impl<R: Host> LvService for LvApi<R> {
    async fn create_lv(&self, request: Request<CreateLvRequest>) -> Result<Response<CreateLvResponse>, Status> {
        record_target(&self.0, &request.get_ref().device_class, &request.get_ref().name);
        let wanted = message::create_volume(request.into_inner())?;
        let volume = run_change(self.0.create(wanted)).await?;
        Ok(Response::new(CreateLvResponse { volume: Some(message::volume(volume)) }))
    }

    async fn remove_lv(&self, request: Request<RemoveLvRequest>) -> Result<Response<Empty>, Status> {
        let RemoveLvRequest { name, device_class } = request.into_inner();
        record_target(&self.0, &device_class, &name);
        let name = message::checked_name(name)?;
        run_change(self.0.remove(&device_class, name)).await?;
        Ok(Response::new(Empty {}))
    }

    async fn resize_lv(&self, request: Request<ResizeLvRequest>) -> Result<Response<ResizeLvResponse>, Status> {
        let ResizeLvRequest { name, device_class, size_bytes } = request.into_inner();
        record_target(&self.0, &device_class, &name);
        let name = message::checked_name(name)?;
        let bytes = u64::try_from(size_bytes).map_err(|_| InvalidRequest::NegativeSize(size_bytes))?;
        let volume = run_change(self.0.resize(&device_class, name, bytes)).await?;
        Ok(Response::new(ResizeLvResponse { size_bytes: message::signed(volume.visible_size()) }))
    }

    async fn create_lv_snapshot(
        &self,
        request: Request<CreateLvSnapshotRequest>,
    ) -> Result<Response<CreateLvSnapshotResponse>, Status> {
        record_target(&self.0, &request.get_ref().device_class, &request.get_ref().name);
        let wanted = message::create_snapshot(request.into_inner())?;
        let snapshot = run_change(self.0.snapshot(wanted)).await?;
        Ok(Response::new(CreateLvSnapshotResponse { snapshot: Some(message::volume(snapshot)) }))
    }

    async fn create_lv_snapshots(
        &self,
        request: Request<CreateLvSnapshotsRequest>,
    ) -> Result<Response<CreateLvSnapshotsResponse>, Status> {
        let wanted = message::create_snapshot_group(request.into_inner())?;
        if let Some(first) = wanted.first() {
            record_target(&self.0, &first.device_class, first.name.as_str());
        }
        let snapshots = run_change(self.0.snapshot_group(wanted)).await?;
        let snapshots = snapshots.into_iter().map(message::volume).collect();
        Ok(Response::new(CreateLvSnapshotsResponse { snapshots }))
    }
}
