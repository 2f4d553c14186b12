//! The port through which commands reach LVM.

use crate::{Error, LvmCommand, Output, RunError};

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
