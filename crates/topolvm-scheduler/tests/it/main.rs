//! The extender as kube-scheduler sees it, and the program as an administrator does.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod access_log;
mod bodies;
mod examples;
mod names;
mod predicate;
mod preemption;
mod prioritize;
mod program;
mod reservations;
mod support;
