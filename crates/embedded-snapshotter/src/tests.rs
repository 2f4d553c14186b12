//! Tests of the snapshotter over a fake API server and a fake driver.

pub(crate) mod content;
mod creation;
mod deletion;
mod fake_driver;
pub(crate) mod group_content;
mod groups;
mod harness;
mod pre_provisioned;
mod watch;
