//! Disk discovery: scans the disks of the machine, reports the state of each, and adds blank ones to the volume groups
//! of disk groups in the mode `auto`.

mod addition;
mod eligibility;
mod memory;
mod request;
mod scan;
mod silence;
mod watch;

pub use scan::{ScanError, Scanner};
pub use watch::Discovery;
