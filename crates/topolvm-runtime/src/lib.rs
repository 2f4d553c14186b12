//! The process shell that the four programs share: flags to configuration, logs, signals, supervised tasks, unix sockets,
//! the gRPC layer, the admin HTTP server, files that change, systemd, a work queue and, behind the feature `kubernetes`, the Kubernetes client.
//!
//! Of volumes it knows how watched `LogicalVolume`s are kept (`kubernetes::LogicalVolumes`), which the agent and the controller share, and
//! nothing else.

pub mod admin;
mod backoff;
pub mod files;
pub mod grpc;
mod histogram;
pub mod http_server;
mod in_flight;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod listen;
mod logging;
#[cfg(feature = "kubernetes")]
pub mod metrics_server;
mod program;
mod reconciles;
mod retired;
pub mod systemd;
mod tasks;
pub mod unix;
mod work;

pub use backoff::Backoff;
pub use histogram::doubling_buckets;
pub use in_flight::{InFlight, Turn};
pub use logging::{LogArgs, error_chain};
pub use program::{ConfigError, Program, main};
pub use reconciles::ReconcileMetrics;
pub use retired::RetiredArgs;
pub use tasks::Tasks;
pub use tokio_util::sync::CancellationToken;
pub use work::{Pace, watch_and_work, work_through};
