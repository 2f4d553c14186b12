//! `proto.StorageService`.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use lvm::Host;
use lvmd_engine::Engine;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::storage_service_server::StorageService;
use topolvm_proto::lvmd::{Empty, WatchStorageResponse};
use topolvm_runtime::grpc::into_status;

use super::storage_message;

pub(super) struct StorageApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> StorageService for StorageApi<R> {
    type WatchStream = BoxStream<'static, Result<WatchStorageResponse, Status>>;

    async fn watch(&self, _request: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        let reports = self.0.watch_storage();
        let messages = reports.map(|report| Ok(storage_message::watch_response(&*report.map_err(into_status)?)));
        Ok(Response::new(messages.boxed()))
    }
}
