//! Shell completions and manual pages, generated from the flags.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;
use crate::error::Error;

/// Returns the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kubectl-topolvm", &mut script);
    script
}

/// Returns the manual page, or writes one for each command into a directory.
pub(crate) fn manual(directory: Option<&Path>) -> Result<Vec<u8>, Error> {
    if let Some(path) = directory {
        let failed = |source| Error::Write { path: path.to_owned(), source };
        clap_mangen::generate_to(Args::command(), path).map_err(failed)?;
        return Ok(Vec::new());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command()).render(&mut page).map_err(Error::Print)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_completes_each_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let script = String::from_utf8(completions(shell)).unwrap();
            for command in ["status", "volumes", "events", "doctor", "support-bundle"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }

    #[test]
    fn each_command_has_a_page() {
        assert!(String::from_utf8(manual(None).unwrap()).unwrap().contains("kubectl\\-topolvm"));
        let directory = tempfile::tempdir().unwrap();
        manual(Some(directory.path())).unwrap();
        assert!(directory.path().join("kubectl-topolvm-support-bundle.1").is_file());
    }
}
