//! Runs shell scripts in the guest.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Runs a bash script that must succeed. Its output is not printed: standard output is for the measurements.
#[expect(clippy::disallowed_methods, reason = "real programs are what is measured")]
pub(super) fn run_script(script: &str) -> Result<()> {
    let mut command = Command::new("bash");
    command.args(["-euc", script]).stdin(Stdio::null());
    let output = command.output().context("run bash")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}: {}: {}", output.status, errors.trim());
    Ok(())
}
