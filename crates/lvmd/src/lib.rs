//! lvmd: the logical volumes of one node, offered over gRPC.
//!
//! An [`Engine`] does the work on top of [`lvm::Lvm`]; [`routes`] puts the gRPC services in front of it. The program lvmd
//! serves them on a unix socket; topolvm-node can [`embed`] the whole of it in its own process.

mod args;
mod check;
mod config;
mod daemon;
mod device_class;
mod embedded;
mod engine;
mod error;
mod grpc;
mod health;
mod marks;
mod metrics;
mod operation;
mod overprovision;
mod reload;
mod run;
mod settings;
mod usage;
mod yaml;

pub use args::{Args, DEFAULT_CONFIG};
pub use config::keys::Key;
pub use config::{Config, InvalidConfig, load};
pub use device_class::{DeviceClass, DeviceClasses, ThinPool};
pub use embedded::embed;
pub use engine::{CreateSnapshot, CreateVolume, Engine, StartError};
pub use error::Error;
pub use grpc::routes;
pub use marks::Maker;
pub use metrics::{EngineMetrics, LvmMetrics, Metered};
pub use overprovision::{InvalidRatio, Overprovision};
pub use settings::Settings;
pub use usage::{ClassUsage, ThinUsage, Usage};
