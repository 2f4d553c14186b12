//! The CSI services. Only these modules know proto messages and `tonic::Status`.
//!
//! `status_code` decides the gRPC code of every error.

mod capabilities;
mod controller;
mod deadline;
mod group_controller;
mod identity;
mod operation_locks;
mod request;
mod response;
mod snapshot_request;
mod status_code;
mod topology;

pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
