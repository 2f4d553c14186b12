//! Counts the programs that lvmd starts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// LVM and blkid behind a script that writes down each start of one.
pub(crate) struct CountedPrograms {
    directory: tempfile::TempDir,
}

impl CountedPrograms {
    pub(crate) fn new() -> Self {
        let programs = Self { directory: tempfile::tempdir().unwrap() };
        let script = format!(
            "#!/bin/sh\nprogram=${{1##*/}}\n[ \"$program\" = lvm ] && program=${{2:-shell}}\n\
             echo \"$program\" >>{}\nexec \"$@\"\n",
            programs.list().display()
        );
        fs::write(programs.script(), script).unwrap();
        fs::set_permissions(programs.script(), fs::Permissions::from_mode(0o755)).unwrap();
        programs
    }

    /// Returns the line of lvmd's configuration.
    pub(crate) fn config(&self) -> String {
        format!("lvm-command-prefix: [{}, /sbin/lvm]\n", self.script().display())
    }

    /// Returns how often each was started, by LVM's command or the program's name.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for name in fs::read_to_string(self.list()).unwrap().lines() {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
        counts
    }

    fn script(&self) -> PathBuf {
        self.directory.path().join("counted")
    }

    fn list(&self) -> PathBuf {
        self.directory.path().join("started")
    }
}

/// Returns how many of the programs were LVM.
pub(crate) fn lvm_processes(counts: &BTreeMap<String, usize>) -> usize {
    counts.iter().filter(|(name, _)| *name != "blkid").map(|(_, count)| count).sum()
}
