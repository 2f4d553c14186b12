//! Test doubles that keep state and know rules: a Kubernetes API server, an LVM, and builders for objects.

pub mod api_server;
pub mod fixtures;
pub mod lvm;

pub use api_server::ApiServer;
