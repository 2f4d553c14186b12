//! A guest's files on the machine: removed when it has ended, and by the next guest if this program was killed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::{GuestSpec, blank_disk, script};
use crate::process::Process;

const PREFIX: &str = "topolvm-guest-";
const INIT: &str = include_str!("../../init/guest-init");
/// Lines of messages in an error.
const MESSAGE_LINES: usize = 40;

/// The directories of a guest: one that the guest can see, and one in memory for its disks, its own memory and its
/// control socket.
#[derive(Debug)]
pub(super) struct Scratch {
    seen: TempDir,
    memory: TempDir,
    /// Directory of the disks.
    disks: PathBuf,
}

impl Scratch {
    /// Creates the directories, the files in them and the disks that do not exist.
    pub(super) fn create(spec: &GuestSpec) -> Result<Self> {
        let me = Process::current()?;
        let prefix = format!("{PREFIX}{}-{}.", me.pid, me.start_time);
        let create = |parent: &Path| {
            remove_stale(parent);
            tempfile::Builder::new()
                .prefix(&prefix)
                .tempdir_in(parent)
                .with_context(|| format!("create a directory in {}", parent.display()))
        };
        // Disks in memory: LVM flushes often, which costs nothing there.
        let (seen, memory) = (create(&visible_directory())?, create(Path::new("/dev/shm"))?);
        let disks = spec.disk_dir.clone().unwrap_or_else(|| memory.path().to_owned());
        let this = Self { seen, memory, disks };

        let write =
            |path: PathBuf, text: &str| fs::write(&path, text).with_context(|| format!("write {}", path.display()));
        write(this.init(), INIT)?;
        fs::set_permissions(this.init(), fs::Permissions::from_mode(0o755))
            .context("make the guest's init executable")?;
        fs::create_dir(this.share()).context("create the shared directory")?;
        fs::create_dir(this.control()).context("create the directory for the control socket")?;
        write(this.share().join("command.sh"), &script::command_script(spec)?)?;
        for (index, size) in spec.disks.iter().enumerate() {
            let disk = this.disk(index);
            if !disk.exists() {
                blank_disk(&disk, *size)?;
            }
        }
        Ok(this)
    }

    pub(super) fn init(&self) -> PathBuf {
        self.seen.path().join("init")
    }

    /// Returns the directory that is mounted in the guest, with the command and later its exit status.
    pub(super) fn share(&self) -> PathBuf {
        self.seen.path().join("share")
    }

    /// Returns the file with the messages of the kernel and of init.
    pub(super) fn console(&self) -> PathBuf {
        self.seen.path().join("console")
    }

    /// Returns the file with the standard error of the kernel as a program of the machine.
    pub(super) fn errors(&self) -> PathBuf {
        self.seen.path().join("errors")
    }

    pub(super) fn memory(&self) -> &Path {
        self.memory.path()
    }

    pub(super) fn control(&self) -> PathBuf {
        self.memory.path().join("control")
    }

    pub(super) fn disk(&self, index: usize) -> PathBuf {
        self.disks.join(format!("disk{index}"))
    }

    /// Returns the exit status of the command, if it has ended.
    pub(super) fn status(&self) -> Option<i32> {
        fs::read_to_string(self.share().join("status")).ok()?.trim().parse().ok()
    }

    pub(super) fn console_text(&self) -> String {
        fs::read(self.console()).map(|text| String::from_utf8_lossy(&text).replace('\r', "")).unwrap_or_default()
    }

    /// Returns the last messages of the guest other than the command's output.
    pub(super) fn last_messages(&self) -> String {
        let errors =
            fs::read(self.errors()).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
        let console = self.console_text();
        let lines: Vec<&str> = errors.lines().chain(console.lines()).filter(|line| !line.trim().is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(MESSAGE_LINES)..).unwrap_or_default();
        if last.is_empty() { "(it said nothing)".to_owned() } else { last.join("\n") }
    }
}

/// Returns the parent of the directories that a guest can see: not in /dev, /run or /proc, of which the guest has its
/// own.
fn visible_directory() -> PathBuf {
    let directory = std::env::temp_dir();
    if directory.starts_with("/dev") || directory.starts_with("/run") || directory.starts_with("/proc") {
        return PathBuf::from("/var/tmp");
    }
    directory
}

/// Removes directories of guests whose program was killed. Those that cannot be removed are not ours.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if owner(&entry.file_name()).is_some_and(|owner| !owner.is_alive()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Returns the program that created a directory, by the directory's name.
fn owner(name: &OsStr) -> Option<Process> {
    let (process, _) = name.to_str()?.strip_prefix(PREFIX)?.split_once('.')?;
    let (pid, start_time) = process.split_once('-')?;
    Some(Process { pid: pid.parse().ok()?, start_time: start_time.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_programs_that_have_ended_are_swept_up() {
        let parent = tempfile::tempdir().unwrap();
        let me = Process::current().unwrap();
        let mine = parent.path().join(format!("{PREFIX}{}-{}.a", me.pid, me.start_time));
        let dead = parent.path().join(format!("{PREFIX}{}-{}.b", me.pid, me.start_time + 1));
        let strange = parent.path().join(format!("{PREFIX}notes"));
        for directory in [&mine, &dead, &strange] {
            fs::create_dir(directory).unwrap();
        }
        remove_stale(parent.path());
        assert!(mine.exists() && strange.exists());
        assert!(!dead.exists());
    }
}
