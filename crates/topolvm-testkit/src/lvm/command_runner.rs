//! The port [`CommandRunner`]: commands that run in memory.

use std::io;
use std::time::Duration;

use lvm::{CommandRunner, Freeze, LvmCommand, Output, RunError};

use super::FakeLvm;
use super::fault::When;

impl CommandRunner for FakeLvm {
    /// Runs commands one after the other; like LVM's shell, also after one that failed.
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, RunError> {
        let latency = {
            let mut plan = self.plan();
            plan.processes += 1;
            plan.latency
        };
        if !latency.is_zero() {
            // tokio's timers have whole milliseconds and may ring two of them late, which a process does not
            tokio::task::spawn_blocking(move || std::thread::sleep(latency))
                .await
                .map_err(|error| RunError::Read(error.into()))?;
        }
        let mut all = Output { code: Some(0), processes: 1, ..Output::default() };
        for command in commands {
            let output = self.run_command(command).await?;
            all.stdout.extend(output.stdout);
            all.stderr.push_str(&output.stderr);
            if commands.len() == 1 {
                all.code = output.code;
            }
        }
        Ok(all)
    }

    /// Runs `blkid`, the only program in addition to the fake LVM.
    async fn run_program(&self, program: &'static str, args: &[String]) -> Result<Output, RunError> {
        if program == "blkid" {
            return Ok(self.state().blkid(args));
        }
        Err(RunError::Spawn { program: program.to_owned(), source: io::ErrorKind::NotFound.into() })
    }

    /// Freezes nothing: there are no writes to volumes in memory.
    async fn freeze(&self, _: &[String], _: Duration) -> Result<Result<Freeze, Output>, RunError> {
        Ok(Ok(Freeze::without_process()))
    }
}

impl FakeLvm {
    async fn run_command(&self, command: &LvmCommand) -> Result<Output, RunError> {
        self.plan().started.push(command.clone());
        if let Some(output) = self.run_steps(When::Before, command).await? {
            return Ok(output);
        }
        let output = self.state().execute(command);
        Ok(self.run_steps(When::After, command).await?.unwrap_or(output))
    }

    async fn run_steps(&self, when: When, command: &LvmCommand) -> Result<Option<Output>, RunError> {
        let steps = self.plan().take(when, command.name());
        for step in steps {
            if let Some(output) = step.run(command).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }
}
