//! The CSI services of a node, Identity and Node, and their registration with kubelet. `csi/error.rs` decides the CSI
//! code of an error, or passes on the one of the module that failed ([`topolvm_runtime::grpc::GrpcCode`]);
//! `csi/mount_code.rs` decides that of an error of `linux-mount`.

mod agent;
mod capability;
mod conditions;
mod discard;
mod discard_queue;
mod error;
mod expand;
mod filesystems;
mod freeze;
mod health;
mod identity;
mod kubelet_paths;
mod mounts;
mod node;
mod prepare;
mod probe;
mod publish;
mod registrar;
mod request;
mod stage;
mod stats;
mod status_code;
mod unpublish;
mod volume;
mod volume_access;

pub use agent::{Agent, AgentOptions};
pub(crate) use error::CsiError;
pub(crate) use identity::IdentityService;
pub use node::NodeService;
pub(crate) use probe::ReadinessCheck;
pub use registrar::Registrar;
