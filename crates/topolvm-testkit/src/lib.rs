//! Test doubles that keep state and follow rules: a Kubernetes API server, an LVM, builders of objects, and a log in
//! memory.

pub mod api_server;
pub mod fixtures;
mod log;
pub mod lvm;

pub use api_server::ApiServer;
pub use log::Log;
