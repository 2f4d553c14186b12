//! Metrics of LVM processes, of the engine, and of the configuration.

mod config;
mod engine;
mod lvm_commands;

pub(crate) use config::ConfigMetrics;
pub use engine::EngineMetrics;
pub use lvm_commands::{LvmMetrics, Metered};
