//! Ends a test program in which a test hangs, with its name and with what each process of the guest waits for. The
//! guest would be killed only after the time of all tests, without a word about either.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{INTERRUPTED, is_soak};

/// Tests that run, with their starts.
static RUNNING: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Returns the time after which a test hangs. The longest take two minutes beside a cluster, and fourteen in a soak.
const fn longest_test(is_soak: bool) -> Duration {
    Duration::from_mins(if is_soak { 60 } else { 15 })
}

/// A test that runs, until this is dropped.
pub(super) struct Running(String);

impl Running {
    pub(super) fn begin(name: &str) -> Self {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), Instant::now());
        Self(name.to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Ends this program as soon as a test has run for too long.
#[expect(clippy::exit, reason = "the thread that would return is in the test")]
pub(super) fn watch() {
    let longest = longest_test(is_soak());
    thread::spawn(move || {
        loop {
            thread::sleep(INTERVAL);
            if let Some(name) = overdue(longest) {
                // As libtest-mimic reports a failed test
                let text = format!(
                    "\n---- {name} ----\n{INTERRUPTED}{name} runs for longer than {longest:?}\n{}failures:\n",
                    processes()
                );
                // A failed write is ignored: there is no other place
                drop(io::stdout().write_all(text.as_bytes()));
                std::process::exit(1);
            }
        }
    });
}

/// Returns the name of a test that has run for longer than this.
fn overdue(longest: Duration) -> Option<String> {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.iter().find(|(_, start)| start.elapsed() > longest).map(|(name, _)| name.clone())
}

/// Returns a line for each process with its parent, its state, what its threads wait for in the kernel, and its command
/// line; below it the stacks of threads that cannot be interrupted.
fn processes() -> String {
    let mut text = String::new();
    for process in procfs::process::all_processes().into_iter().flatten().flatten() {
        let (Ok(stat), Ok(command), Ok(tasks)) = (process.stat(), process.cmdline(), process.tasks()) else { continue };
        let (mut waits_for, mut stacks) = (BTreeSet::new(), String::new());
        for task in tasks.flatten() {
            let file = |name| fs::read_to_string(format!("/proc/{}/task/{}/{name}", task.pid, task.tid));
            waits_for.insert(file("wchan").unwrap_or_default());
            if task.stat().is_ok_and(|task| task.state == 'D') {
                stacks.push_str(&file("stack").unwrap_or_default());
            }
        }
        // Kernel threads have no command line
        if !command.is_empty() || !stacks.is_empty() {
            let waits_for = waits_for.into_iter().collect::<Vec<_>>().join(",");
            // A write to a String cannot fail
            let _ = writeln!(text, "{} {} {} {waits_for} {}", stat.pid, stat.ppid, stat.state, command.join(" "));
            text.push_str(&stacks);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_is_overdue_only_while_it_runs() {
        let running = Running::begin("hanging");
        thread::sleep(Duration::from_millis(2));
        assert_eq!(overdue(Duration::from_hours(1)), None);
        assert_eq!(overdue(Duration::from_millis(1)).as_deref(), Some("hanging"));
        drop(running);
        assert_eq!(overdue(Duration::ZERO), None);
    }

    #[test]
    fn processes_of_the_guest_are_listed_with_their_state() {
        let own = std::process::id().to_string();
        assert!(processes().lines().any(|line| line.starts_with(&format!("{own} "))), "{}", processes());
    }
}
