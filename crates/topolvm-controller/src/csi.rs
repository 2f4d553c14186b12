//! The CSI services. Only these modules know proto messages and `tonic::Status`.

mod answer;
mod capability;
mod controller;
mod copies;
mod deadline;
mod identity;
mod request;
mod topology;

pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
