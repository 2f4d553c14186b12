//! Disk discovery: scans the disks of the machine, reports the state of each, and adds blank ones to the volume groups
//! of disk groups in the mode `auto`.
//!
//! [`Discovery`] does so for an engine as long as lvmd runs; [`describe_disks()`] is the answer of `lvmd disks`. The
//! engine knows of neither.

mod addition;
mod describe_disks;
mod eligibility;
mod memory;
mod request;
mod scan;
mod silence;
mod watch;

pub use describe_disks::describe_disks;
pub use watch::Discovery;
