//! Throw-away machines with a kernel of their own: one command runs in each, on blank disks, with device-mapper.
//!
//! A guest sees the machine's files, but what it writes is gone with it, except for [`GuestSpec::out_dir`]. However it
//! ends (the command finishes, the kernel panics, nothing happens any more, Ctrl-C), its processes, disks and memory
//! are removed.

mod cpu;
mod mconsole;
mod scratch;
mod script;
mod supervise;
pub mod uml;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

pub use self::cpu::Turn;
pub(crate) use self::script::MARKER;
use crate::netns::NetNs;
use crate::size::{GIB, MIB};

const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Which kind of machine a guest is. Everything else is written against this, so that another kind (qemu with KVM) can
/// be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GuestKind {
    /// User-Mode Linux: needs no support by the machine's kernel or processor.
    #[default]
    Uml,
}

/// A guest to be.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// The kind of machine.
    pub kind: GuestKind,
    /// Memory in bytes. It takes what it uses; a quarter of it cannot be used for files.
    pub memory: u64,
    /// Sizes in bytes of the blank disks `/dev/ubda`, `/dev/ubdb`, ... They take what is written to them, of the
    /// machine's memory.
    pub disks: Vec<u64>,
    /// A directory of the machine for the files of the disks. Those that are there are used with what is on them, the
    /// others are made; they stay when the guest has ended, so that another guest can go on with them. Without it disks
    /// are blank and go with the guest.
    pub disk_dir: Option<PathBuf>,
    /// After this time from the start the guest is ended and the run fails.
    pub timeout: Duration,
    /// The CPU it is pinned to; the guests take turns when not given.
    pub cpu: Option<usize>,
    /// Program and arguments. Programs of the machine are there at their own paths.
    pub command: Vec<String>,
    /// The command's environment, beside `PATH`, `HOME` and `LC_ALL`.
    pub env: BTreeMap<String, String>,
    /// The command's directory.
    pub cwd: PathBuf,
    /// A directory of the machine that the guest can write to.
    pub out_dir: Option<PathBuf>,
    /// The network device `vec0`.
    pub network: Option<Network>,
    /// What happens to the command's output.
    pub output: Output,
    /// Whether Debian's systemd is process 1, with udevd, as on a node. Without it the command is all that runs.
    pub systemd: bool,
}

/// A guest's place in a network.
#[derive(Debug, Clone)]
pub struct Network {
    /// The namespace in which the tap is; the guest's kernel runs in it.
    pub netns: NetNs,
    /// The tap device, which must be there already.
    pub tap: String,
    /// The guest's address with its prefix length: `10.0.0.2/24`.
    pub address: String,
    /// The guest's default gateway.
    pub gateway: Option<IpAddr>,
}

/// What happens to the output of a guest's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// It appears on this program's own standard output and error, as it comes.
    #[default]
    PassOn,
    /// It is kept for [`Finished`].
    Keep,
}

/// What came of a guest whose command ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The command's exit status; 128 + signal number when a signal ended it.
    pub status: i32,
    /// What it wrote to standard output, with [`Output::Keep`].
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, with [`Output::Keep`].
    pub stderr: Vec<u8>,
    /// The kernel's warnings and errors.
    pub kernel_messages: String,
}

impl Default for GuestSpec {
    /// One disk of 4 GiB, 768 MiB of memory, ten minutes, the present directory; no command yet.
    fn default() -> Self {
        Self {
            kind: GuestKind::default(),
            memory: 768 * MIB,
            disks: vec![4 * GIB],
            disk_dir: None,
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
    /// [`GuestSpec::default`] for this command.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self { command: command.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// [`GuestSpec::default`] for a shell script, which ends at the first failing command.
    pub fn script(script: impl Into<String>) -> Self {
        Self::new(["bash".to_owned(), "-euc".to_owned(), script.into()])
    }
}

/// Whether this program runs in a guest.
pub fn is_inside() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Boots a guest, runs its command and waits for the end.
pub fn run(spec: GuestSpec) -> Result<Finished> {
    Guest::start(spec)?.wait()
}

/// A guest that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    next_disk: AtomicUsize,
    supervisor: Option<JoinHandle<Result<Finished>>>,
}

/// What the handle and the supervising thread have in common.
#[derive(Debug)]
struct Shared {
    spec: GuestSpec,
    scratch: scratch::Scratch,
    /// Set by the handle: end it.
    unwanted: AtomicBool,
    /// Set by the supervisor: it has ended.
    ended: AtomicBool,
    stdout: Mutex<Vec<u8>>,
    stderr: Mutex<Vec<u8>>,
}

/// A disk that was added to a running guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    index: usize,
    file: PathBuf,
}

impl Disk {
    /// Its path in the guest, such as `/dev/ubdb`.
    pub fn device(&self) -> String {
        let letter = u8::try_from(self.index).map_or('?', |index| char::from(b'a' + index));
        format!("/dev/ubd{letter}")
    }
}

impl Guest {
    /// Boots a guest in the background.
    pub fn start(spec: GuestSpec) -> Result<Self> {
        if spec.command.is_empty() {
            bail!("no command for the guest");
        }
        if let Some(reason) = crate::machine::missing_for_guests() {
            bail!("no guests on this machine: {reason}");
        }
        crate::interrupt::watch()?;
        let scratch = scratch::Scratch::create(&spec)?;
        let next_disk = AtomicUsize::new(spec.disks.len());
        let shared = Arc::new(Shared {
            spec,
            scratch,
            unwanted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stdout: Mutex::default(),
            stderr: Mutex::default(),
        });
        let kernel = crate::assets::kernel()?;
        let layer = if shared.spec.systemd { Some(crate::assets::systemd()?) } else { None };
        let supervisor = {
            let shared = Arc::clone(&shared);
            // The thread that starts the guest stays with it: the guest dies with the thread (see supervise.rs).
            spawn(move || {
                let result = supervise::supervise(&shared, &kernel, layer.as_deref());
                shared.ended.store(true, Ordering::Release);
                result
            })
        };
        Ok(Self { shared, next_disk, supervisor: Some(supervisor) })
    }

    /// Adds a blank disk of this size (bytes) while the guest runs; waits for the guest to be far enough.
    pub fn add_disk(&self, size: u64) -> Result<Disk> {
        let index = self.next_disk.fetch_add(1, Ordering::Relaxed);
        let file = self.shared.scratch.disk(index);
        blank_disk(&file, size)?;
        let control = self.shared.scratch.control();
        self.until(Duration::from_secs(30), "the guest's control socket", || control.join("uml/mconsole").exists())?;
        match self.shared.spec.kind {
            GuestKind::Uml => uml::add_disk(&control, index, &file)?,
        }
        Ok(Disk { index, file })
    }

    /// Takes a disk away that [`Guest::add_disk`] added. Fails while something in the guest has it open.
    pub fn remove_disk(&self, disk: &Disk) -> Result<()> {
        match self.shared.spec.kind {
            GuestKind::Uml => uml::remove_disk(&self.shared.scratch.control(), disk.index)?,
        }
        std::fs::remove_file(&disk.file).with_context(|| format!("remove {}", disk.file.display()))
    }

    /// Waits until the command has written this to standard output. With [`Output::Keep`] only.
    pub fn wait_for_stdout(&self, text: &str, timeout: Duration) -> Result<()> {
        let wanted = text.as_bytes();
        self.until(timeout, text, || lock(&self.shared.stdout).windows(wanted.len()).any(|window| window == wanted))
    }

    fn until(&self, timeout: Duration, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let end = Instant::now() + timeout;
        while !is_so() {
            if self.shared.ended.load(Ordering::Acquire) {
                bail!("the guest ended before {what:?} was there");
            }
            if Instant::now() >= end {
                bail!("{what:?} was not there after {timeout:?}\n{}", self.shared.scratch.last_words());
            }
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Waits for the command to end and the guest to be gone.
    ///
    /// A guest that dies, hangs or is interrupted is an error with its last kernel messages.
    pub fn wait(mut self) -> Result<Finished> {
        self.join()
    }

    /// Ends the guest as a power failure would.
    pub fn kill(mut self) {
        self.shared.unwanted.store(true, Ordering::Release);
        drop(self.join());
    }

    fn join(&mut self) -> Result<Finished> {
        match self.supervisor.take() {
            Some(supervisor) => supervisor.join().map_err(|_| anyhow!("the guest's supervisor panicked"))?,
            None => bail!("the guest was waited for already"),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.unwanted.store(true, Ordering::Release);
        drop(self.join());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a sparse file of `size` bytes that reads as zeros.
fn blank_disk(path: &Path, size: u64) -> Result<()> {
    File::create(path)
        .and_then(|disk| disk.set_len(size))
        .with_context(|| format!("create the disk {}", path.display()))
}
