//! The CSI controller service: it turns CSI calls into `LogicalVolume` objects and waits for the node agents.
//!
//! - `csi/` speaks CSI: requests are parsed once at the edge, nothing below sees a proto message or a `tonic::Status`.
//! - `volumes/` finds, lists, makes, copies, grows and removes `LogicalVolume` objects through the API server.
//! - `volume_informer` and `nodes` keep what the API server told about `LogicalVolume`s and Nodes. They wake waiters and
//!   answer questions whose answer may be a moment old; what decides about data is read through the API server.
//! - `reconcile/` does what no CSI call asks for: it tidies up after deleted Nodes, claims and volumes, and nudges kubelet to grow
//!   filesystems. `leader` sees to it that one replica at a time does.
//! - `webhook/` answers the API server about new pods and claims, with the certificate for that.
//! - `driver` puts these together; `run` is the process around it.
//!

mod args;
mod csi;
mod driver;
mod leader;
mod minimum_allocation;
mod node_informer;
mod reconcile;
mod run;
mod volume_informer;
mod volume_size;
mod volumes;
mod webhook;

pub use args::{Args, Config};
pub use driver::Driver;
pub use volume_size::MinimumAllocation;
pub use webhook::{CapacityResource, Certificates, SelfManaged, Surroundings, WebhookArgs, WebhookConfig, Webhooks};
