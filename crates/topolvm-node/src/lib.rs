//! The agent of one node: it serves the CSI node service, makes, grows and removes the LVs that `LogicalVolume` objects
//! ask for, and tells the cluster how much room the node has.
//!
//! It talks to lvmd for everything that concerns LVM, over its socket or in this process, and starts no LVM command itself.

mod args;
pub mod capacity;
pub mod csi;
mod filesystem;
mod health;
pub mod lvmd;
pub mod mount;
pub mod reconcile;
mod registrar;
mod run;
mod volumes;

pub use args::{Args, Config, Embedded, LvmdPlace};
pub use filesystem::Filesystem;
pub use health::Health;
pub use registrar::Registrar;
pub use run::{LvmdPart, Parts, start};
pub use volumes::{LookupError, RecordError, Volumes};
