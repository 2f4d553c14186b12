//! lvmd: manages the logical volumes of one node, over gRPC.
//!
//! An [`Engine`] does the work on top of [`lvm::Lvm`]; [`routes`] puts the gRPC services in front of it. The program
//! lvmd serves them on a unix socket; topolvm-node can [`embed`] all of it in its own process.

mod args;
mod check_config;
mod convert_config;
mod daemon;
mod describe_disks;
mod discovery;
mod disk_addition;
mod embedded;
mod engine;
mod error;
mod grpc;
mod health;
mod inventory;
mod lvm_reader;
mod metrics;
mod process_count;
mod reload;
mod run;
mod settings;
mod watch_stream;

pub use args::{Args, DEFAULT_CONFIG};
pub use discovery::{Discovery, ScanError, Scanner};
pub use embedded::embed;
pub use engine::{AdoptVolume, CreateSnapshot, CreateVolume, Engine, StartError};
pub use error::Error;
pub use grpc::routes;
pub use inventory::{
    ClassEntry, EvacuationEntry, EvacuationState, GroupEntry, GroupReport, Inventory, PhysicalVolumeEntry, PoolEntry,
};
pub use lvm_reader::LvmReader;
pub use metrics::{DiskMetrics, EngineMetrics, LvmMetrics, Metered};
pub use settings::Settings;
