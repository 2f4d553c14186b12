//! The CSI controller service: it turns CSI calls into `LogicalVolume` objects and waits for the node agents.
//!
//! - `csi/` implements CSI: requests are parsed once at the edge, and errors become gRPC codes in `csi/status_code.rs`.
//!   Nothing below sees a proto message or anything of tonic.
//! - `volumes/` finds, lists, creates, copies, expands and deletes `LogicalVolume` objects through the API server;
//!   `volumes/node_choice.rs` chooses the node of a new one.
//! - `volume_informer` and `node_informer` watch `LogicalVolume`s and Nodes. They wake waiters and answer queries whose
//!   answer may be a moment old; facts that decide about data are read through the API server. `claim_watch` is the one
//!   watch of claims. All three feed `topolvm_capacity`, which computes the free space after reservations.
//! - `reconcile/` has the controllers: they clean up after deleted Nodes, claims and volumes, remove finalizers, and
//!   make the kubelet grow filesystems. `leader` is the leader election: one replica at a time runs them, and
//!   `capacity_publisher`, a separate crate, which writes CSIStorageCapacity objects on demand.
//! - `scheduling` has the scheduling mode.
//! - `topolvm_ui`, a separate crate, serves the web page from the caches of these, and `cluster_inventory` the lists of
//!   all nodes.
//! - `added_controllers` adds to the controllers what is a crate of its own: `claim_growth`, `claim_rebuild` and
//!   `doctor_controller`.
//! - `driver` puts these together; `run` is the process around it, which also starts the admission webhooks of
//!   `topolvm_webhook`, a crate that only `args` and `run` name.

mod added_controllers;
mod args;
mod claim_watch;
mod csi;
mod driver;
mod leader;
mod node_informer;
mod pod_claims;
mod reconcile;
mod run;
mod scheduling;
mod volume_informer;
mod volume_size;
mod volumes;

use topolvm_capacity::minimum_allocation;

pub use args::{Args, Config};
pub use driver::{Driver, DriverSettings};
pub use topolvm_capacity::MinimumAllocation;
