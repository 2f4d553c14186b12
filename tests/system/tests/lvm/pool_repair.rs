//! The documented repair of a thin pool whose LVM was killed in the middle of a change.

use crate::fixture::{run, run_ok};

/// Returns true for LVM's messages, which lvmd passes on, about a pool whose metadata and kernel state do not match:
/// LVM has no command that repairs it.
pub(crate) fn is_pool_complaint(message: &str) -> bool {
    let complaints =
        ["Manual intervention", "unexpected transaction id", "Failed to activate thin", "No data available"];
    complaints.iter().any(|complaint| message.contains(complaint))
}

/// Repairs a pool as in docs/limits.md: deletes the thin device that LVM never recorded from the kernel, and resumes
/// devices that LVM suspended.
pub(crate) fn repair_pool(message: &str) {
    let number = message.split("dev_id=").nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit));
    if let Some(number) = number.map(String::from_iter).filter(|number| !number.is_empty()) {
        drop(run("dmsetup", &["message", "myvg1-pool-tpool", "0", &format!("delete {number}")]));
    }
    resume_all();
}

pub(crate) fn resume_all() {
    for device in run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "name"]).lines() {
        drop(run("dmsetup", &["resume", device]));
    }
}

/// Returns true if LVM, run by hand, creates a volume in the pool.
pub(crate) fn can_create_in_pool() -> bool {
    let is_made = run("lvcreate", &["-qy", "-T", "myvg1/pool", "-V4m", "-n", "by-hand"]).status.success();
    drop(run("lvremove", &["-qfy", "myvg1/by-hand"]));
    is_made
}
