//! The fake API server behaves as the real one does, seen through kube's own client and runtime.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod deletion;
mod faults;
mod reading;
mod support;
mod watches;
mod writing;
