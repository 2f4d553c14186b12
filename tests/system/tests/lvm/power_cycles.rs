//! A machine whose power is cut: guests with the same disks, one after the other, and a directory for notes that keeps
//! synced data.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use testbed::guest::{Guest, GuestSpec, Output};

/// Timeout that is longer than a boot and the repairs of lvmd after it.
pub(crate) const LONG: Duration = Duration::from_mins(3);

pub(crate) struct PowerCycles {
    role: &'static str,
    /// Bytes of each disk.
    sizes: Vec<u64>,
    disks: TempDir,
    notes: TempDir,
}

impl PowerCycles {
    /// Returns a machine with blank disks of so many bytes, which runs this program with the role and the directory of
    /// the notes as its arguments.
    pub(crate) fn new(role: &'static str, sizes: &[u64]) -> Self {
        let (disks, notes) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        Self { role, sizes: sizes.to_vec(), disks, notes }
    }

    /// Returns the directory of the notes.
    pub(crate) fn notes(&self) -> &Path {
        self.notes.path()
    }

    /// Switches the machine on.
    pub(crate) fn boot(&self) -> Guest {
        let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        let notes = self.notes().to_str().unwrap().to_owned();
        Guest::start(GuestSpec {
            disks: self.sizes.clone(),
            disk_dir: Some(self.disks.path().to_owned()),
            out_dir: Some(self.notes().to_owned()),
            timeout: LONG,
            output: Output::Keep,
            ..GuestSpec::new([program, self.role.to_owned(), notes])
        })
        .unwrap()
    }
}
