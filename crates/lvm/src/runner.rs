//! The port through which commands reach LVM.

use std::io;
use std::time::Duration;

use crate::{Error, LvmCommand};

/// Output and exit status of commands that ended by themselves.
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
        /// First word of the command line.
        program: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// It was still running at its deadline and was stopped.
    #[error("no end after {} s", .0.as_secs())]
    Timeout(Duration),
    /// Its output could not be read.
    #[error("cannot read its output")]
    Read(#[source] io::Error),
}

/// Runs LVM commands.
///
/// Dropping the future of commands that only [read](crate::Effect::Read) stops them. What
/// [changes](crate::Effect::Change) something goes on to its end whatever becomes of the future; whoever needs to know
/// how it ended must keep the future.
pub trait CommandRunner: Send + Sync + 'static {
    /// Runs commands to their end, one after the other, in one process if there is a way. A failure that LVM itself
    /// reports is an [`Output`], not an error.
    ///
    /// The output is that of all commands. A later command may run although an earlier one failed, and the exit status
    /// is then that of nothing: whoever runs several commands ends them with a report and believes that.
    fn run(&self, commands: &[LvmCommand]) -> impl Future<Output = Result<Output, RunError>> + Send;

    /// Runs a program of another package than LVM's, such as `dmsetup`, where LVM runs, to its end. Only what ends at
    /// once and needs no protection from being killed.
    fn run_program(
        &self,
        program: &'static str,
        args: &[String],
    ) -> impl Future<Output = Result<Output, RunError>> + Send;

    /// Receives the outcome of commands from whoever evaluated it: in LVM's shell the exit status says nothing. `None`
    /// is success.
    fn record_outcome(&self, commands: &[LvmCommand], failure: Option<&Error>) {
        let _ = (commands, failure);
    }

    /// Waits until LVM commands that an earlier process left running have ended, but not for ever. Tells `begin` how
    /// many there are, if there are any.
    fn wait_for_orphans(&self, begin: impl FnOnce(usize) + Send) -> impl Future<Output = ()> + Send {
        drop(begin);
        std::future::ready(())
    }
}
