//! The kube-scheduler extender: keeps pods away from nodes without enough free space for their volumes and prefers
//! nodes with more.
//!
//! It reads the capacity annotations of the pod, which kube-scheduler sends, and of the nodes, which kube-scheduler
//! sends or a watch of the Nodes shows; and, on demand, the reservations on the nodes that are not used yet.

mod access_log;
mod answer;
mod args;
mod binding_pods;
mod capacity;
mod config;
mod extender;
mod http;
mod metrics;
mod node_cache;
mod predicate;
mod prioritize;
mod reservations;
mod run;
mod tls;

pub use args::Args;
pub use config::{Config, TlsFiles};
pub use http::{Watches, router};
pub use metrics::Metrics;
pub use node_cache::NodeCache;
pub use prioritize::Scoring;
pub use reservations::Reservations;
