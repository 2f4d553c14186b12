//! The programs of a cluster that run on this machine, each with a pid file and a log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::failure::WithState as _;
use crate::log;
use crate::process::{Process, spawn, stop_file};

/// Time that a program has to become ready. The slowest known machine needs a tenth of it.
const START_TIMEOUT: Duration = Duration::from_mins(3);
/// First interval of the checks that a program is ready, and the longest. It grows with the time that was waited, for
/// many a check starts kubectl, which takes a tenth of a second of CPU time.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// Starts and stops the programs of one cluster, each with `run/NAME.pid` and `log/NAME.log`.
#[derive(Debug, Clone)]
pub(crate) struct Processes {
    directory: PathBuf,
}

impl Processes {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.directory.join("log").join(format!("{name}.log"))
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.directory.join("run").join(format!("{name}.pid"))
    }

    pub(crate) fn start(&self, name: &str, command: &Command) -> Result<()> {
        spawn(command, &self.log(name), &self.pid_file(name)).with_context(|| format!("start {name}"))?;
        Ok(())
    }

    pub(crate) fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        stop_file(&self.pid_file(name), grace).with_context(|| format!("stop {name}"))
    }

    pub(crate) fn process(&self, name: &str) -> Result<Option<Process>> {
        Process::from_file(&self.pid_file(name))
    }

    /// Returns the names of the programs that were started and not stopped, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let directory = self.directory.join("run");
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            names.extend(name.strip_suffix(".pid").map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Calls `probe` until it succeeds. Fails when the program ends or is not ready within three minutes, with the end
    /// of its log.
    pub(crate) fn wait_until_ready<T>(&self, name: &str, probe: impl FnMut() -> Result<T>) -> Result<T> {
        self.wait_until_ready_within(name, START_TIMEOUT, probe)
    }

    /// Does the same within another time.
    pub(crate) fn wait_until_ready_within<T>(
        &self,
        name: &str,
        timeout: Duration,
        mut probe: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            let error = match probe() {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            if !self.process(name)?.is_some_and(|process| process.is_alive()) {
                bail!("{name} died: {}", log::tail(&self.log(name), 15));
            }
            if start.elapsed() >= timeout {
                let error = error.context(format!("{name} was not ready after {timeout:?}"));
                return Err(error).with_state(|| log::tail(&self.log(name), 15));
            }
            let [first, longest] = POLL_INTERVALS;
            sleep((start.elapsed() / 8).clamp(first, longest));
        }
    }
}
