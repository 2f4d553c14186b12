//! Test doubles that keep state and know rules: a Kubernetes API server, an LVM, builders for objects, and a log to
//! read.

pub mod api_server;
pub mod fixtures;
mod log;
pub mod lvm;

pub use api_server::ApiServer;
pub use log::Log;
