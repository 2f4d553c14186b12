//! lvmd: manages the logical volumes of one node, over gRPC.
//!
//! An [`Engine`] does the work on top of [`lvm::Lvm`]; [`routes`] puts the gRPC services in front of it. The program
//! lvmd serves them on a unix socket; topolvm-node can [`embed`] all of it in its own process.

mod args;
mod capacity;
mod check_config;
mod config;
mod convert_config;
mod daemon;
mod describe_disks;
mod device_class;
mod discovery;
mod disk_addition;
mod disk_group;
mod disk_report;
mod embedded;
mod engine;
mod error;
mod grpc;
mod health;
mod inventory;
mod lvm_reader;
mod machine;
mod metrics;
mod process_count;
mod reload;
mod run;
mod settings;
mod tags;
mod watch_stream;

pub use args::{Args, DEFAULT_CONFIG};
pub use capacity::{Capacity, ClassCapacity, LayoutCapacity, ThinPoolUsage};
pub use config::keys::Key;
pub use config::{Config, InvalidConfig, load};
pub use device_class::{
    DeviceClass, DeviceClasses, FreeSpace, InvalidRatio, OptionClass, OverprovisionRatio, PoolGrowth, PoolShare,
    ThinPool,
};
pub use discovery::{Discovery, ScanError, Scanner};
pub use disk_group::{
    DiskGroup, DiskGroups, InvalidLabel, Mode, NodeLabels, NodeSelector, Pattern, Selector, WantedLabel,
};
pub use disk_report::{DiskFinding, DiskReport, DiskState, Evacuation, GroupFinding, Refusal};
pub use embedded::embed;
pub use engine::{AdoptVolume, CreateSnapshot, CreateVolume, Engine, StartError};
pub use error::Error;
pub use grpc::routes;
pub use inventory::{
    ClassEntry, EvacuationEntry, EvacuationState, GroupEntry, GroupReport, Inventory, PhysicalVolumeEntry, PoolEntry,
};
pub use lvm_reader::LvmReader;
pub use machine::Machine;
pub use metrics::{DiskMetrics, EngineMetrics, LvmMetrics, Metered};
pub use settings::Settings;
pub use tags::{InstanceId, MANAGED, quarantine_name, quarantined_at, quarantined_uid};
