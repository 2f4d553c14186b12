//! The process shell that the four programs share: flags to configuration, logs, signals, supervised tasks, unix
//! sockets, the gRPC layer, the admin HTTP server, files that change, systemd and, behind the feature `tls`, HTTPS
//! servers, and behind `time-span` the time spans of flags. It knows neither Kubernetes nor volumes.

pub mod admin;
#[cfg(feature = "tls")]
pub mod authorized_server;
mod backoff;
pub mod files;
pub mod grpc;
mod histogram;
pub mod http_client;
pub mod http_server;
mod in_flight;
#[cfg(feature = "tls")]
pub mod inventory_server;
pub mod listen;
mod logging;
mod metrics_page;
#[cfg(feature = "tls")]
pub mod metrics_server;
mod program;
mod retired;
pub mod systemd;
mod tasks;
#[cfg(feature = "time-span")]
pub mod time_span;
#[cfg(feature = "tls")]
pub mod tls;
pub mod unix;

pub use backoff::Backoff;
pub use histogram::doubling_buckets;
pub use in_flight::{InFlight, Turn};
pub use logging::{LogArgs, error_chain};
pub use metrics_page::MetricsPage;
pub use program::{ConfigError, Program, main};
pub use retired::RetiredArgs;
pub use tasks::Tasks;
pub use tokio_util::sync::CancellationToken;
