//! lvmd: manages the logical volumes of one node, over gRPC.
//!
//! A [`lvmd_engine::Engine`] does the work; [`routes`] puts the gRPC services in front of it, and
//! [`lvmd_discovery::Discovery`] gives it disks. The program lvmd serves them on a unix socket; topolvm-node can
//! [`embed`] all of it in its own process.

mod args;
mod check_config;
mod convert_config;
mod daemon;
mod embedded;
mod grpc;
mod health;
mod metrics;
mod reload;
mod run;
mod settings;

pub use args::{Args, DEFAULT_CONFIG};
pub use embedded::embed;
pub use grpc::routes;
pub use metrics::{DiskMetrics, EngineMetrics, LvmMetrics, Metered};
pub use settings::Settings;
