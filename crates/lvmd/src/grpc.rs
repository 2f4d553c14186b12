//! The gRPC services: translate, call the engine, translate.

mod lv_service;
mod message;
mod vg_service;

use lvm::Host;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use topolvm_proto::lvmd::lv_service_server::LvServiceServer;
use topolvm_proto::lvmd::vg_service_server::VgServiceServer;
use topolvm_runtime::grpc::into_status;

use crate::engine::Engine;
use crate::error::{Error, InvalidRequest};

/// `proto.LVService` and `proto.VGService`, to be served on a socket or called in the same process.
pub fn routes<R: Host>(engine: &Engine<R>) -> Routes {
    Routes::new(LvServiceServer::new(lv_service::LvApi(engine.clone())))
        .add_service(VgServiceServer::new(vg_service::VgApi(engine.clone())))
}

/// What somebody who calls without a socket can call.
#[derive(Clone, Debug)]
pub(crate) enum Offer {
    /// Nothing yet.
    Starting,
    /// Nothing, and why.
    Failed(String),
    /// All services.
    Started(Routes),
}

/// The answer while there is nothing to call. Clients try again, as with a socket on which nobody listens.
pub(crate) fn not_started(reason: &str) -> http::Response<Body> {
    Status::unavailable(format!("not started: {reason}")).into_http()
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        into_status(error)
    }
}

impl From<InvalidRequest> for Status {
    fn from(error: InvalidRequest) -> Self {
        into_status(error)
    }
}
