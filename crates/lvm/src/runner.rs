//! The port through which commands reach LVM.

use std::time::Duration;

use crate::{Error, Freeze, LvmCommand, Output, RunError};

/// Runs LVM commands.
///
/// Dropping the future of commands that only [read](crate::Effect::Read) stops them. Commands that
/// [change](crate::Effect::Change) something run to their end even if the future is dropped; a caller that needs their
/// outcome must keep the future.
pub trait CommandRunner: Send + Sync + 'static {
    /// Runs commands to their end, one after the other, in one process if possible. A failure that LVM itself reports
    /// is an [`Output`], not an error.
    ///
    /// The output is that of all commands. A later command may run although an earlier one failed, and the exit status
    /// then belongs to no particular command: a caller of several commands ends them with a report and relies on that.
    fn run(&self, commands: &[LvmCommand]) -> impl Future<Output = Result<Output, RunError>> + Send;

    /// Runs a program of another package than LVM's, such as `dmsetup`, where LVM runs, to its end. Only what ends at
    /// once and needs no protection from being killed.
    fn run_program(
        &self,
        program: &'static str,
        args: &[String],
    ) -> impl Future<Output = Result<Output, RunError>> + Send;

    /// Freezes the filesystems on devices of device-mapper, by the names of these, from another process that outlives
    /// this one. It thaws them when the [`Freeze`] ends, when this process does, or after `limit`: no filesystem stays
    /// frozen whatever happens to the caller.
    ///
    /// Freezing writes all that is in memory. If it is not possible, as for a device that is open without a mounted
    /// filesystem, the answer is an [`Output`], and everything is thawed by then.
    fn freeze(
        &self,
        devices: &[String],
        limit: Duration,
    ) -> impl Future<Output = Result<Result<Freeze, Output>, RunError>> + Send;

    /// Receives the outcome of commands from the code that evaluated it: in LVM's shell the exit status shows nothing.
    /// `None` is success.
    fn record_outcome(&self, commands: &[LvmCommand], failure: Option<&Error>) {
        let _ = (commands, failure);
    }

    /// Waits until LVM commands that an earlier process left running have ended, for a limited time. Passes their
    /// number to `begin`, if there are any.
    fn wait_for_orphans(&self, begin: impl FnOnce(usize) + Send) -> impl Future<Output = ()> + Send {
        drop(begin);
        std::future::ready(())
    }
}
