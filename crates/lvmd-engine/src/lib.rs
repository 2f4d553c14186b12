//! The engine of lvmd: creates, grows, snapshots, removes and lists logical volumes by device class, on top of LVM.
//!
//! [`Engine`] has all operations. Those who need LVM without a change get an [`LvmReader`]; the disks of a volume group
//! are changed through [`LockedDisks`] alone, while the group is locked. The engine looks for no disks: it stores the
//! report of those who do, and hands them the requests of clients.

mod disk_addition;
mod engine;
mod error;
mod lvm_reader;
pub mod process_count;
mod storage_report;
mod watch_stream;

pub use disk_addition::DiskAddition;
pub use engine::{
    AdoptVolume, CreateSnapshot, CreateVolume, Engine, EvacuationStatus, GroupStatus, LockedDisks, PoolStatus,
    StartError, WipeStatus,
};
pub use error::Error;
pub use lvm_reader::LvmReader;
pub use storage_report::{
    ClassEntry, DiskVolume, EvacuationEntry, GroupEntry, PhysicalVolumeEntry, PoolEntry, StorageReport,
};
