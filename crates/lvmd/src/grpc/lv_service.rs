//! `proto.LVService`.

use lvm::Host;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::lv_service_server::LvService;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvResponse, CreateLvSnapshotRequest, CreateLvSnapshotResponse, Empty, RemoveLvRequest,
    ResizeLvRequest, ResizeLvResponse,
};

use super::message;
use crate::engine::Engine;
use crate::error::InvalidRequest;

pub(super) struct LvApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> LvService for LvApi<R> {
    async fn create_lv(&self, request: Request<CreateLvRequest>) -> Result<Response<CreateLvResponse>, Status> {
        let wanted = message::create_volume(request.into_inner())?;
        let volume = self.0.create(wanted).await?;
        Ok(Response::new(CreateLvResponse { volume: Some(message::volume(volume)) }))
    }

    async fn remove_lv(&self, request: Request<RemoveLvRequest>) -> Result<Response<Empty>, Status> {
        let RemoveLvRequest { name, device_class } = request.into_inner();
        let name = message::checked_name(name)?;
        self.0.remove(&device_class, name).await?;
        Ok(Response::new(Empty {}))
    }

    async fn resize_lv(&self, request: Request<ResizeLvRequest>) -> Result<Response<ResizeLvResponse>, Status> {
        let ResizeLvRequest { name, device_class, size_bytes } = request.into_inner();
        let name = message::checked_name(name)?;
        let bytes = u64::try_from(size_bytes).map_err(|_| InvalidRequest::NegativeSize(size_bytes))?;
        let volume = self.0.resize(&device_class, name, bytes).await?;
        Ok(Response::new(ResizeLvResponse { size_bytes: message::signed(volume.visible_size()) }))
    }

    async fn create_lv_snapshot(
        &self,
        request: Request<CreateLvSnapshotRequest>,
    ) -> Result<Response<CreateLvSnapshotResponse>, Status> {
        let wanted = message::create_snapshot(request.into_inner())?;
        let snapshot = self.0.snapshot(wanted).await?;
        Ok(Response::new(CreateLvSnapshotResponse { snapshot: Some(message::volume(snapshot)) }))
    }
}
