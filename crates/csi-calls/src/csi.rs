//! The calls of the CSI services, each with its deadline.

mod call;
mod controller;
mod group;

pub use call::{CallError, Secrets};
pub use controller::{Capabilities, CsiController, Expanded};
pub use group::CsiGroupController;
