//! `proto.StorageService`.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use lvm::Host;
use lvmd_engine::Engine;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::storage_service_server::StorageService;
use topolvm_proto::lvmd::{Empty, WatchStorageResponse};
use topolvm_runtime::grpc::into_status;

use super::inventory_message;

pub(super) struct StorageApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> StorageService for StorageApi<R> {
    type WatchStream = BoxStream<'static, Result<WatchStorageResponse, Status>>;

    async fn watch(&self, _request: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        let inventories = self.0.watch_inventory();
        let messages =
            inventories.map(|inventory| Ok(inventory_message::watch_response(&*inventory.map_err(into_status)?)));
        Ok(Response::new(messages.boxed()))
    }
}
