//! The client of LogicalVolumes, and errors of the API server.

use kube::Api;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_testkit::ApiServer;

pub(crate) fn volumes(server: &ApiServer) -> Api<LogicalVolume> {
    Api::all_with(server.client(), &ApiFlavor::TopoLvm)
}

/// Returns the HTTP status, reason and message of a request that was refused.
pub(crate) fn refusal<T>(result: kube::Result<T>) -> (u16, String, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason, status.message),
        Err(error) => panic!("failed otherwise: {error}"),
        Ok(_) => panic!("was not refused"),
    }
}
