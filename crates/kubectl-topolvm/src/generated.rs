//! Shell completions and manual pages, generated from the flags.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;
use cli_runtime::output::OutputError;

use crate::args::Args;
use crate::error::Error;

/// Returns the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kubectl-topolvm", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the manual page, or writes one for each command into a directory.
pub(crate) fn manual(directory: Option<&Path>) -> Result<String, Error> {
    let mut page = Vec::new();
    match directory {
        Some(path) => clap_mangen::generate_to(Args::command(), path)
            .map_err(|source| Error::Write { path: path.to_owned(), source })?,
        None => clap_mangen::Man::new(Args::command()).render(&mut page).map_err(OutputError::Print)?,
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The line that completes a command, up to the command and from there on, and the one that says for which program.
    #[rstest]
    #[case(Shell::Bash, "        kubectl__topolvm,", ")", " -o default kubectl-topolvm")]
    #[case(Shell::Zsh, "'", ":", "#compdef kubectl-topolvm")]
    #[case(Shell::Fish, "-f -a \"", "\" -d", "complete -c kubectl-topolvm")]
    #[case(Shell::PowerShell, "[CompletionResult]::new('", "',", "-CommandName 'kubectl-topolvm'")]
    #[case(Shell::Elvish, "cand ", " '", "edit:completion:arg-completer[kubectl-topolvm]")]
    fn each_shell_completes_each_command(
        #[case] shell: Shell,
        #[case] before: &str,
        #[case] after: &str,
        #[case] program: &str,
    ) {
        let script = completions(shell);
        assert!(script.contains(program), "{script}");
        let commands: Vec<_> = Args::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert!(commands.len() > 10, "{commands:?}");
        for command in commands {
            assert!(script.contains(&format!("{before}{command}{after}")), "{shell}: {command}");
        }
    }

    #[test]
    fn each_command_has_a_page() {
        assert!(manual(None).unwrap().contains("kubectl\\-topolvm"));
        let directory = tempfile::tempdir().unwrap();
        manual(Some(directory.path())).unwrap();
        assert!(directory.path().join("kubectl-topolvm-support-bundle.1").is_file());
    }
}
