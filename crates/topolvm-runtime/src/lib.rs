//! The process shell that the four programs share: flags to configuration, logs, signals, supervised tasks, unix sockets,
//! the gRPC layer, the admin HTTP server and, behind the feature `kubernetes`, the Kubernetes client.
//!
//! It knows nothing about volumes.

pub mod admin;
pub mod grpc;
mod in_flight;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod logging;
mod program;
mod tasks;
pub mod unix;

pub use in_flight::{InFlight, Turn};
pub use logging::LogArgs;
pub use program::{ConfigError, Program, main};
pub use tasks::Tasks;
pub use tokio_util::sync::CancellationToken;
