//! lvmd: the logical volumes of one node, offered over gRPC.
//!
//! An [`Engine`] does the work on top of [`lvm::Lvm`]; [`routes`] puts the gRPC services in front of it. The program lvmd
//! serves them on a unix socket; topolvm-node can use the same two in its own process.

mod args;
mod check;
mod config;
mod device_class;
mod engine;
mod error;
mod grpc;
mod health;
mod marks;
mod metrics;
mod overprovision;
mod reload;
mod run;
mod usage;
mod yaml;

pub use args::Args;
pub use config::{Config, InvalidConfig, load};
pub use device_class::{DeviceClass, DeviceClasses, ThinPool};
pub use engine::{CreateSnapshot, CreateVolume, Engine, StartError};
pub use error::Error;
pub use grpc::routes;
pub use metrics::{LvmMetrics, Metered};
pub use overprovision::{InvalidRatio, Overprovision};
pub use usage::{ClassUsage, ThinUsage, Usage};
