//! The processes of LVM on this machine.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Lists the processes of LVM.
pub(crate) fn lvm_processes() -> Vec<Pid> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_lvm = |process: &String| {
        fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| ["lvm", "nsenter"].contains(&name.trim()))
    };
    processes.filter(is_lvm).filter_map(|process| Pid::from_raw(process.parse().ok()?)).collect()
}

pub(crate) fn is_lvm_idle() -> bool {
    lvm_processes().is_empty()
}

pub(crate) fn kill_lvm() {
    for lvm in lvm_processes() {
        // It may have exited already.
        let _ = kill_process(lvm, Signal::KILL);
    }
}
