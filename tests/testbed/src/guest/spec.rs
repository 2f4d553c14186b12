//! The specification of a guest, and the result of its command.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::netns::NetNs;
use crate::size::{GIB, MIB};

/// Kind of machine that a guest is. Another one (qemu with KVM) could be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GuestKind {
    /// User-Mode Linux: needs no support by the machine's kernel or processor.
    #[default]
    Uml,
}

/// The specification of a guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Kind of machine.
    pub kind: GuestKind,
    /// Memory in bytes. Only used memory is taken from the machine; a quarter of it cannot be used for files.
    pub memory: u64,
    /// Sizes in bytes of the blank disks `/dev/ubda`, `/dev/ubdb`, ... Only written blocks take memory of the machine.
    pub disks: Vec<u64>,
    /// A directory of the machine for the files of the disks. Existing files are used with their contents, the others
    /// are created; they stay when the guest has ended, so that another guest can use them. Without it disks are blank
    /// and are removed with the guest.
    pub disk_dir: Option<PathBuf>,
    /// Files of the machine that are disks after those: other guests may have them at the same time, as nodes have a
    /// LUN.
    pub shared_disks: Vec<PathBuf>,
    /// Timeout from the start of the guest, after which it is killed and the run fails.
    pub timeout: Duration,
    /// CPU that it is pinned to; the one with the fewest guests when not given.
    pub cpu: Option<usize>,
    /// Program and arguments of the command. Programs of the machine are available at their paths.
    pub command: Vec<String>,
    /// Environment of the command, in addition to `PATH`, `HOME` and `LC_ALL`.
    pub env: BTreeMap<String, String>,
    /// Working directory of the command.
    pub cwd: PathBuf,
    /// A directory of the machine that the guest can write to.
    pub out_dir: Option<PathBuf>,
    /// Network of the device `vec0`.
    pub network: Option<Network>,
    /// Destination of the command's output.
    pub output: Output,
    /// Debian's systemd as process 1, with udevd, as on a node. Without it the command is all that runs.
    pub systemd: bool,
}

/// A guest's place in a network.
#[derive(Debug, Clone)]
pub struct Network {
    /// The namespace in which the tap is; the guest's kernel runs in it.
    pub netns: NetNs,
    /// The tap device, which must exist.
    pub tap: String,
    /// The guest's address with its prefix length: `10.0.0.2/24`.
    pub address: String,
    /// The guest's default gateway.
    pub gateway: Option<IpAddr>,
}

/// Destination of the output of a guest's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// This program's own standard output and error, as it comes.
    #[default]
    PassOn,
    /// The fields of [`Finished`].
    Keep,
}

/// The result of a guest whose command ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Exit status of the command; 128 + signal number when a signal ended it.
    pub status: i32,
    /// Standard output of the command, with [`Output::Keep`].
    pub stdout: Vec<u8>,
    /// Standard error of the command, with [`Output::Keep`].
    pub stderr: Vec<u8>,
    /// Warnings and errors of the kernel.
    pub kernel_messages: String,
}

impl Default for GuestSpec {
    /// Returns a specification with one disk of 4 GiB, 768 MiB of memory, a timeout of ten minutes and the present
    /// directory; no command yet.
    fn default() -> Self {
        Self {
            kind: GuestKind::default(),
            memory: 768 * MIB,
            disks: vec![4 * GIB],
            disk_dir: None,
            shared_disks: Vec::new(),
            timeout: Duration::from_mins(10),
            cpu: None,
            command: Vec::new(),
            env: BTreeMap::new(),
            cwd: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            out_dir: None,
            network: None,
            output: Output::default(),
            systemd: false,
        }
    }
}

impl GuestSpec {
    /// Returns [`GuestSpec::default`] for this command.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self { command: command.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns [`GuestSpec::default`] for a shell script, which ends at the first failing command.
    pub fn script(script: impl Into<String>) -> Self {
        Self::new(["bash".to_owned(), "-euc".to_owned(), script.into()])
    }
}
