//! `proto.VGService`.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use lvm::Host;
use lvmd_engine::Engine;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::vg_service_server::VgService;
use topolvm_proto::lvmd::{
    Empty, GetFreeBytesRequest, GetFreeBytesResponse, GetLvListRequest, GetLvListResponse, WatchResponse,
};
use topolvm_runtime::grpc::into_status;

use super::message;

pub(super) struct VgApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> VgService for VgApi<R> {
    type WatchStream = BoxStream<'static, Result<WatchResponse, Status>>;

    async fn get_lv_list(&self, request: Request<GetLvListRequest>) -> Result<Response<GetLvListResponse>, Status> {
        let GetLvListRequest { device_class, name } = request.into_inner();
        let volumes = if name.is_empty() {
            let listed = self.0.list(&device_class).await.map_err(into_status)?;
            let thin_usage = self.0.thin_usage(&device_class, &listed).await;
            message::volumes(listed, &thin_usage)
        } else {
            let name = message::checked_name(name)?;
            let found = self.0.find(&device_class, &name).await.map_err(into_status)?;
            found.into_iter().map(message::volume).collect()
        };
        Ok(Response::new(GetLvListResponse { volumes }))
    }

    async fn get_free_bytes(
        &self,
        request: Request<GetFreeBytesRequest>,
    ) -> Result<Response<GetFreeBytesResponse>, Status> {
        let free_bytes = self.0.free_bytes(&request.into_inner().device_class).map_err(into_status)?;
        Ok(Response::new(GetFreeBytesResponse { free_bytes }))
    }

    async fn watch(&self, _request: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        let capacities = self.0.watch_capacity();
        let messages = capacities.map(|capacity| Ok(message::watch_response(&*capacity.map_err(into_status)?)));
        Ok(Response::new(messages.boxed()))
    }
}
