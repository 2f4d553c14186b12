//! The CSI services. Only these modules know proto messages and `tonic::Status`.

mod capabilities;
mod controller;
mod deadline;
mod identity;
mod request;
mod response;
mod topology;

pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
