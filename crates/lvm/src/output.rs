//! Output of LVM commands, or why there is none.

use std::io;
use std::time::Duration;

/// Output and exit status of commands that ended on their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Exit status; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output, as it came.
    pub stdout: Vec<u8>,
    /// Standard error; what is not UTF-8 is replaced.
    pub stderr: String,
    /// Number of LVM processes that were started for it.
    pub processes: u32,
}

/// Error of a command that gave no output.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program could not be started.
    #[error("cannot start {program}; check lvm-command-prefix and that the program is installed")]
    Spawn {
        /// The program of the command line.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// It was still running at its deadline and was stopped.
    #[error("it did not end within {} s", .0.as_secs())]
    Timeout(Duration),
    /// Its output could not be read.
    #[error("cannot read its output")]
    Read(#[source] io::Error),
}
