//! Faults, pauses and hooks that a test injects into LVM's commands, and the commands that were started.

use std::sync::Arc;
use std::time::Duration;

use lvm::LvmCommand;

use super::FakeLvm;
use super::fault::{Fault, Pause, Step, When};

impl FakeLvm {
    /// Counts the starts of an LVM sub-command.
    pub fn count(&self, command: &str) -> usize {
        self.plan().started.iter().filter(|started| started.name() == command).count()
    }

    /// Counts the LVM processes that were started.
    pub fn processes(&self) -> usize {
        self.plan().processes
    }

    /// Returns the command lines that were started, in order.
    pub fn commands(&self) -> Vec<String> {
        self.plan().started.iter().map(ToString::to_string).collect()
    }

    /// Sets the time that every process takes.
    pub fn set_latency(&self, latency: Duration) {
        self.plan().latency = latency;
    }

    /// Makes the `nth` start of a sub-command from now on (1 is the next) fail before it changes anything.
    pub fn fail(&self, command: &str, nth: usize, fault: Fault) {
        self.plan().add(When::Before, command, Some(nth), fault.into_step());
    }

    /// Makes the `nth` start of a sub-command from now on fail after it has done its work.
    pub fn fail_after_success(&self, command: &str, nth: usize, fault: Fault) {
        self.plan().add(When::After, command, Some(nth), fault.into_step());
    }

    /// Makes every start of a sub-command fail, until [`Self::clear_faults`].
    pub fn fail_always(&self, command: &str, fault: Fault) {
        self.plan().add(When::Before, command, None, fault.into_step());
    }

    /// Removes all faults, pauses and hooks that have not happened yet.
    pub fn clear_faults(&self) {
        self.plan().clear();
    }

    /// Pauses the next start of a sub-command before it changes anything.
    pub fn pause(&self, command: &str) -> Pause {
        let (pause, step) = Pause::new();
        self.plan().add(When::Before, command, Some(1), step);
        pause
    }

    /// Pauses the next start of a sub-command after it has done its work.
    pub fn pause_after(&self, command: &str) -> Pause {
        let (pause, step) = Pause::new();
        self.plan().add(When::After, command, Some(1), step);
        pause
    }

    /// Calls `hook` at every start of a sub-command, before it changes anything.
    pub fn before(&self, command: &str, hook: impl Fn(&LvmCommand) + Send + Sync + 'static) {
        self.plan().add(When::Before, command, None, Step::Hook(Arc::new(hook)));
    }

    /// Calls `hook` at every start of a sub-command, after it has done its work.
    pub fn after(&self, command: &str, hook: impl Fn(&LvmCommand) + Send + Sync + 'static) {
        self.plan().add(When::After, command, None, Step::Hook(Arc::new(hook)));
    }
}
