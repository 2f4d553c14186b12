//! Faults, pauses and hooks of LVM's commands.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{LvmCommand, Output, RunError};
use tokio::sync::oneshot;

/// A failure that a test injects into a command.
#[derive(Clone, Debug)]
pub enum Fault {
    /// LVM ends with this exit status and this text on standard error.
    Exit(i32, String),
    /// LVM did not end in time.
    Timeout,
    /// LVM could not be started.
    Spawn,
    /// LVM ends with status 0, but its output is cut off.
    Garbled,
}

impl Fault {
    /// Makes a failure with LVM's exit status 5 and this message.
    pub fn says(stderr: &str) -> Self {
        Self::Exit(5, format!("  {stderr}\n"))
    }

    pub(super) fn into_step(self) -> Step {
        Step::Fail(self)
    }

    fn apply(self) -> Result<Output, RunError> {
        match self {
            Self::Exit(code, stderr) => Ok(Output { code: Some(code), stderr, ..Output::default() }),
            Self::Garbled => Ok(Output { code: Some(0), stdout: b"  LVM2_VG_NAME='vg".to_vec(), ..Output::default() }),
            Self::Timeout => Err(RunError::Timeout(Duration::from_mins(1))),
            Self::Spawn => Err(RunError::Spawn {
                program: "/sbin/lvm".to_owned(),
                source: io::Error::from(io::ErrorKind::NotFound),
            }),
        }
    }
}

/// A command that a test has paused. Dropping it resumes the command.
#[derive(Debug)]
pub struct Pause {
    reached: Option<oneshot::Receiver<()>>,
    resume: oneshot::Sender<()>,
}

impl Pause {
    pub(super) fn new() -> (Self, Step) {
        let (reach, reached) = oneshot::channel();
        let (resume, resumed) = oneshot::channel();
        (Self { reached: Some(reached), resume }, Step::Wait(reach, resumed))
    }

    /// Waits until the command is paused.
    pub async fn reached(&mut self) {
        if let Some(reached) = self.reached.take() {
            // Without a sender the pause was removed by `clear_faults`, and the command is never paused.
            drop(reached.await);
        }
    }

    /// Resumes the command.
    pub fn resume(self) {
        // Without a receiver the command's caller has gone away.
        let _ = self.resume.send(());
    }
}

/// Position of a step: before or after the command has done its work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Before,
    After,
}

/// An injected failure, pause or hook.
pub(super) enum Step {
    Fail(Fault),
    Wait(oneshot::Sender<()>, oneshot::Receiver<()>),
    Hook(Arc<dyn Fn(&LvmCommand) + Send + Sync>),
}

impl Step {
    /// Runs the step. Returns an output that replaces that of the command, if any.
    pub(super) async fn run(self, command: &LvmCommand) -> Result<Option<Output>, RunError> {
        match self {
            Self::Fail(fault) => fault.apply().map(Some),
            Self::Wait(reach, resumed) => {
                let _ = reach.send(());
                drop(resumed.await);
                Ok(None)
            }
            Self::Hook(hook) => {
                hook(command);
                Ok(None)
            }
        }
    }

    /// Returns the step for the next start of the command; a pause happens once.
    fn repeat(&self) -> Option<Self> {
        match self {
            Self::Fail(fault) => Some(Self::Fail(fault.clone())),
            Self::Hook(hook) => Some(Self::Hook(Arc::clone(hook))),
            Self::Wait(..) => None,
        }
    }
}

/// The commands that were started, and the steps of later ones.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) started: Vec<LvmCommand>,
    pub(super) processes: usize,
    pub(super) latency: Duration,
    entries: VecDeque<Entry>,
}

struct Entry {
    when: When,
    command: String,
    /// Starts of the command until the step happens, that one included; `None` for each and every one.
    nth: Option<usize>,
    step: Step,
}

impl Plan {
    pub(super) fn add(&mut self, when: When, command: &str, nth: Option<usize>, step: Step) {
        self.entries.push_back(Entry { when, command: command.to_owned(), nth, step });
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the steps that are due at this start of a command.
    pub(super) fn take(&mut self, when: When, command: &str) -> Vec<Step> {
        let mut due = Vec::new();
        for mut entry in std::mem::take(&mut self.entries) {
            if entry.when == when && entry.command == command {
                match entry.nth {
                    None => due.extend(entry.step.repeat()),
                    Some(0 | 1) => {
                        due.push(entry.step);
                        continue;
                    }
                    Some(nth) => entry.nth = Some(nth - 1),
                }
            }
            self.entries.push_back(entry);
        }
        due
    }
}
