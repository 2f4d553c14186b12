//! The kube-scheduler extender: keeps pods away from nodes without room for their volumes and prefers nodes with more.
//!
//! It knows only what kube-scheduler sends: the capacity annotations of the pod and of the nodes. It does not talk to
//! the API server.

mod access_log;
mod args;
mod config;
mod extender;
mod http;
mod metrics;
mod predicate;
mod prioritize;
mod run;

pub use args::Args;
pub use config::Config;
pub use http::router;
pub use metrics::Metrics;
pub use prioritize::Scoring;
