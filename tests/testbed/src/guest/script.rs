//! The shell script that a guest's init runs: environment, directory, command.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::GuestSpec;

/// Environment variable that is set for every command in a guest.
pub(crate) const MARKER: &str = "TOPOLVM_TESTBED_GUEST";

/// Returns the script that runs the command of a specification.
pub(super) fn command_script(spec: &GuestSpec) -> Result<String> {
    let mut script = format!("export {MARKER}=1\n");
    for (name, value) in &spec.env {
        let mut letters = name.chars();
        let first_is_fine = letters.next().is_some_and(|letter| letter.is_ascii_alphabetic() || letter == '_');
        if !first_is_fine || !letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_') {
            bail!("{name:?} cannot be the name of an environment variable in a guest");
        }
        writeln!(script, "export {name}={}", quote(value))?;
    }
    let cwd = spec.cwd.to_str().with_context(|| format!("the directory {} is not text", spec.cwd.display()))?;
    writeln!(script, "cd -- {} || exit 126", quote(cwd))?;
    script.push_str("exec --");
    for word in &spec.command {
        write!(script, " {}", quote(word))?;
    }
    script.push('\n');
    Ok(script)
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gives_every_word_back_unchanged() {
        let words = ["", "a b", "$HOME", "it's", "`x`", "\"", "\\", "line\nbreak", "*"];
        let mut spec = GuestSpec::new(["printf", "%s|", "end"]);
        spec.command.extend(words.map(str::to_owned));
        spec.env.insert("A".into(), "o'clock $x".into());
        spec.cwd = "/proc".into();
        let script = command_script(&spec).unwrap();
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("end|{}|", words.join("|")));
        let script = script.replace("exec --", "echo \"$A $PWD\"; exec --");
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.stdout.starts_with(b"o'clock $x /proc\n"));
    }

    #[test]
    fn a_name_that_no_shell_takes_is_refused() {
        let mut spec = GuestSpec::new(["true"]);
        spec.env.insert("BASH_FUNC_x%%".into(), "() { :; }".into());
        assert!(command_script(&spec).is_err());
    }
}
