//! User-Mode Linux: a kernel that is an ordinary program, with the machine's own files as its root.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::mconsole::Mconsole;
use crate::assets::Kernel;
use crate::netns::NetNs;

/// Parameters of a guest's kernel, for [`Boot::command`].
#[derive(Debug, Clone)]
pub(crate) struct Boot<'a> {
    /// Kernel.
    pub(crate) kernel: &'a Kernel,
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// The one CPU of the machine that it may use.
    pub(crate) cpu: usize,
    /// Program of process 1: an absolute path, visible below `/`.
    pub(crate) init: &'a Path,
    /// Directory for the guest's control socket (`DIR/uml/mconsole`).
    pub(crate) control: &'a Path,
    /// Directory for the file that is the guest's memory; on a disk it would be written out again and again.
    pub(crate) memory_dir: &'a Path,
    /// Files behind `/dev/ubda`, `/dev/ubdb`, ...
    pub(crate) disks: &'a [PathBuf],
    /// Files behind the disks after those, which other guests may have open as well.
    pub(crate) shared_disks: &'a [PathBuf],
    /// Tap device behind the guest's `vec0`, if it has one.
    pub(crate) tap: Option<Tap<'a>>,
    /// Further kernel arguments: consoles, log level; `NAME=value` with a name that the kernel does not know becomes
    /// the environment of `init`.
    pub(crate) arguments: Vec<OsString>,
}

/// An existing tap device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tap<'a> {
    /// Network namespace that it is in.
    pub(crate) netns: &'a NetNs,
    /// Name of the device.
    pub(crate) name: &'a str,
}

impl Boot<'_> {
    /// Returns the command that boots the guest. It becomes the kernel: its process id is the guest's, and killing it
    /// ends everything in the guest.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.tap {
            Some(tap) => tap.netns.command("taskset"),
            None => Command::new("taskset"),
        };
        // One CPU: the guest consists of processes that wake each other up, which across CPUs costs two to six times as
        // much.
        command.arg("-c").arg(self.cpu.to_string()).arg("env");
        // No umask, locale or library path of the caller should matter; and the C library comes last, because no
        // program of the machine but this kernel works with it.
        command.arg(assignment("TMPDIR", self.memory_dir)).arg(assignment("LD_LIBRARY_PATH", &self.kernel.libc));
        command.arg(&self.kernel.program);
        // Without seccomp=on the kernel uses ptrace, whose signal frames of 11 KiB overflow small alternate stacks.
        command.arg("seccomp=on").arg(format!("mem={}K", self.memory / 1024));
        command.args(["rootfstype=hostfs", "rootflags=/", "ro", "noreboot"]);
        command.arg(assignment("init", self.init)).arg(assignment("MODULES", &self.kernel.modules));
        command.arg(assignment("uml_dir", self.control)).arg(format!("umid={UMID}"));
        for (index, disk) in self.disks.iter().enumerate() {
            command.arg(assignment(&format!("ubd{index}"), disk));
        }
        for (index, disk) in self.shared_disks.iter().enumerate() {
            // c: without the lock that keeps the file from a second guest
            command.arg(assignment(&format!("ubd{}c", self.disks.len() + index), disk));
        }
        if let Some(tap) = self.tap {
            command.arg(format!("vec0:transport=tap,ifname={},depth=64,gro=1", tap.name));
        }
        command.args(&self.arguments);
        command
    }
}

const UMID: &str = "uml";

/// Adds a disk to a running guest: the file becomes `/dev/ubda` for index 0, and so on.
pub(crate) fn add_disk(control: &Path, index: usize, file: &Path) -> Result<()> {
    let mut line = OsString::from(format!("config ubd{index}="));
    line.push(file);
    Mconsole::connect(&control.join(UMID).join("mconsole"))?.request(&line.to_string_lossy()).map(drop)
}

/// Removes a disk from a running guest; fails while a program in the guest has it open.
pub(crate) fn remove_disk(control: &Path, index: usize) -> Result<()> {
    Mconsole::connect(&control.join(UMID).join("mconsole"))?.request(&format!("remove ubd{index}")).map(drop)
}

/// Returns `NAME=PATH`.
pub(crate) fn assignment(name: &str, path: &Path) -> OsString {
    let mut text = OsString::from(name);
    text.push("=");
    text.push(path);
    text
}
