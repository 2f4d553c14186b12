//! The gRPC services: translate requests, call the engine, translate answers. Each error becomes a status by its
//! `GrpcCode`.

pub(crate) mod disk_message;
mod disk_service;
mod invalid_request;
mod lv_service;
mod message;
mod orphan_service;
mod storage_message;
mod storage_service;
mod vg_service;

use lvm::Host;
use lvmd_engine::Engine;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use topolvm_proto::lvmd::disk_service_server::DiskServiceServer;
use topolvm_proto::lvmd::lv_service_server::LvServiceServer;
use topolvm_proto::lvmd::orphan_service_server::OrphanServiceServer;
use topolvm_proto::lvmd::storage_service_server::StorageServiceServer;
use topolvm_proto::lvmd::vg_service_server::VgServiceServer;
use topolvm_runtime::grpc::into_status;

use self::invalid_request::InvalidRequest;

/// Returns `proto.LVService`, `proto.VGService`, `proto.StorageService`, `proto.OrphanService` and `proto.DiskService`,
/// to be served on a socket or called in the same process.
pub fn routes<R: Host>(engine: &Engine<R>) -> Routes {
    Routes::new(LvServiceServer::new(lv_service::LvApi(engine.clone())))
        .add_service(VgServiceServer::new(vg_service::VgApi(engine.clone())))
        .add_service(StorageServiceServer::new(storage_service::StorageApi(engine.clone())))
        .add_service(DiskServiceServer::new(disk_service::DiskApi(engine.clone())))
        .add_service(OrphanServiceServer::new(orphan_service::OrphanApi(engine.clone())))
}

/// The services of an embedded lvmd, which may not have started yet.
#[derive(Clone, Debug)]
pub(crate) enum EmbeddedServices {
    /// The first attempt to start is running.
    Starting,
    /// The last attempt failed, for this reason.
    Failed(String),
    /// The services.
    Started(Routes),
}

/// Returns the answer of an lvmd that has not started: `Unavailable`, like a socket without a listener. Clients retry.
pub(crate) fn not_started(reason: &str) -> http::Response<Body> {
    Status::unavailable(format!("not started: {reason}")).into_http()
}

impl From<InvalidRequest> for Status {
    fn from(error: InvalidRequest) -> Self {
        into_status(error)
    }
}
