//! Guests: throw-away machines with a separate kernel. One command runs in each, on blank disks, with device-mapper.
//!
//! A guest sees the machine's files, but what it writes is removed with it, except in [`GuestSpec::out_dir`]. However
//! it ends (the command finishes, the kernel panics, the guest hangs, Ctrl-C), its processes, disks and memory are
//! removed.

mod cpu;
mod mconsole;
mod scratch;
mod script;
mod spec;
mod supervise;
pub(crate) mod uml;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

pub(crate) use self::cpu::CpuLock;
pub(crate) use self::script::MARKER;
pub use self::spec::{Finished, GuestKind, GuestSpec, Network, Output};

/// Interval of the checks of a guest.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns true when this program runs in a guest.
pub fn is_inside() -> bool {
    std::env::var_os(MARKER).is_some()
}

/// Boots a guest, runs its command and waits until the guest has ended.
pub fn run(spec: GuestSpec) -> Result<Finished> {
    Guest::start(spec)?.wait()
}

/// A running guest. Dropping it kills the guest.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    next_disk: AtomicUsize,
    supervisor: Option<JoinHandle<Result<Finished>>>,
}

/// State that the handle shares with the supervising thread.
#[derive(Debug)]
struct Shared {
    spec: GuestSpec,
    scratch: scratch::Scratch,
    /// Set by the handle: the guest is to be killed.
    unwanted: AtomicBool,
    /// Set by the supervisor: the guest has ended.
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
    /// Returns its path in the guest, such as `/dev/ubdb`.
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
        let next_disk = AtomicUsize::new(spec.disks.len() + spec.shared_disks.len());
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

    /// Adds a blank disk of this size (bytes) to the running guest. Waits until the guest has its control socket.
    pub fn add_disk(&self, size: u64) -> Result<Disk> {
        let index = self.next_disk.fetch_add(1, Ordering::Relaxed);
        let file = self.shared.scratch.disk(index);
        blank_disk(&file, size)?;
        let control = self.shared.scratch.control();
        self.wait_until(Duration::from_secs(30), "the guest's control socket", || {
            control.join("uml/mconsole").exists()
        })?;
        match self.shared.spec.kind {
            GuestKind::Uml => uml::add_disk(&control, index, &file)?,
        }
        Ok(Disk { index, file })
    }

    /// Removes a disk that [`Guest::add_disk`] added. Fails while a program in the guest has it open.
    pub fn remove_disk(&self, disk: &Disk) -> Result<()> {
        match self.shared.spec.kind {
            GuestKind::Uml => uml::remove_disk(&self.shared.scratch.control(), disk.index)?,
        }
        std::fs::remove_file(&disk.file).with_context(|| format!("remove {}", disk.file.display()))
    }

    /// Waits until the command has written this to standard output. With [`Output::Keep`] only.
    pub fn wait_for_stdout(&self, text: &str, timeout: Duration) -> Result<()> {
        let wanted = text.as_bytes();
        self.wait_until(timeout, text, || {
            lock(&self.shared.stdout).windows(wanted.len()).any(|window| window == wanted)
        })
    }

    /// Waits until a condition holds. Fails when the guest ends or the time is over.
    fn wait_until(&self, timeout: Duration, what: &str, holds: impl Fn() -> bool) -> Result<()> {
        let end = Instant::now() + timeout;
        while !holds() {
            if self.shared.ended.load(Ordering::Acquire) {
                bail!("the guest ended before {what:?} was there");
            }
            if Instant::now() >= end {
                bail!("{what:?} was not there after {timeout:?}\n{}", self.shared.scratch.last_messages());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until the command and the guest have ended. A guest that dies, hangs or is interrupted is an error with
    /// its last kernel messages.
    pub fn wait(mut self) -> Result<Finished> {
        self.join()
    }

    /// Kills the guest, as a power failure would.
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

/// Creates a sparse file of `size` bytes that reads as zeros.
fn blank_disk(path: &Path, size: u64) -> Result<()> {
    File::create(path)
        .and_then(|disk| disk.set_len(size))
        .with_context(|| format!("create the disk {}", path.display()))
}
