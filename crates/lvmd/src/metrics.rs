//! Metrics of LVM processes, of the engine, of disk groups, and of the configuration.

mod config;
mod disks;
mod engine;
mod lvm_commands;

pub(crate) use config::ConfigMetrics;
pub use disks::DiskMetrics;
pub use engine::EngineMetrics;
pub use lvm_commands::{LvmMetrics, Metered};
