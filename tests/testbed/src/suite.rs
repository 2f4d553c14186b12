//! Runs the tests of test programs (`harness = false`, libtest-mimic) in a guest or on this machine, or skips them, and
//! prints how long each has taken.

mod overdue;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::guest::{GuestSpec, MARKER, Output, run};
use crate::{machine, program, times};

/// Environment variables of the caller that have no meaning in a guest, or another one.
const NOT_INHERITED: [&str; 10] =
    ["PATH", "HOME", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "LD_LIBRARY_PATH", "LS_COLORS"];

/// Begins the line with the reason why a guest did not end by itself.
pub const INTERRUPTED: &str = "the tests did not run to their end: ";

/// Environment variable that is set in a soak: random tests run longer, and tests run that are too long for each
/// change.
const SOAK: &str = "TOPOLVM_SOAK";

/// Creates a test of a function whose error fails it.
pub fn test(name: impl Into<String>, body: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let name = name.into();
    let measured = name.clone();
    Trial::test(name, move || {
        let start = Instant::now();
        let running = overdue::Running::begin(&measured);
        let result = body();
        drop(running);
        times::record(&measured, start);
        result.map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// Creates a test of a function whose panic fails it.
pub fn panicking_test(name: &str, body: impl FnOnce() + Send + 'static) -> Trial {
    test(name, move || {
        body();
        Ok(())
    })
}

/// Returns true in a soak.
pub fn is_soak() -> bool {
    std::env::var_os(SOAK).is_some()
}

/// Tests of a program that a soak runs.
#[derive(Clone, Copy, Debug)]
pub struct InSoak {
    /// Tests that run only in a soak.
    pub only: &'static [&'static str],
    /// Tests that a soak runs as well, in another way.
    pub also: &'static [&'static str],
}

impl InSoak {
    /// Returns the tests of this run: in a soak those that are listed, else all but those that run only in a soak.
    ///
    /// # Panics
    /// If a listed test does not exist.
    pub fn select(self, tests: Vec<Trial>) -> Vec<Trial> {
        let listed = [self.only, self.also].concat();
        assert_exist(&listed, &tests);
        let is_chosen =
            |test: &Trial| if is_soak() { listed.contains(&test.name()) } else { !self.only.contains(&test.name()) };
        tests.into_iter().filter(is_chosen).collect()
    }
}

/// Returns all tests in a soak, otherwise all but those that are listed.
///
/// # Panics
/// If a listed test does not exist.
pub fn without_soak(listed: &[&str], tests: Vec<Trial>) -> Vec<Trial> {
    assert_exist(listed, &tests);
    tests.into_iter().filter(|test| is_soak() || !listed.contains(&test.name())).collect()
}

/// Panics if a listed test does not exist.
fn assert_exist(listed: &[&str], tests: &[Trial]) {
    let missing: Vec<_> = listed.iter().filter(|name| !tests.iter().any(|test| test.name() == **name)).collect();
    assert!(missing.is_empty(), "listed for the soak, and no test: {missing:?}");
}

/// Runs the tests and prints their times.
fn run_all(arguments: &Arguments, tests: Vec<Trial>) -> ExitCode {
    let code = libtest_mimic::run(arguments, tests).exit_code();
    times::print();
    code
}

/// Runs the tests in one guest with `spec`, except its command: the test program is started again inside with the same
/// arguments. They run one after the other unless `--test-threads` is given, because a guest has one CPU. One that
/// hangs ends them all.
///
/// Where no guest can be booted every test counts as ignored, with the reason in one line; with `CI=true` that is a
/// failure.
pub fn in_guest(spec: GuestSpec, tests: Vec<Trial>) -> ExitCode {
    let arguments = Arguments::from_args();
    // A guest that would run nothing is not worth its second.
    let nothing = tests.iter().all(|test| arguments.is_filtered_out(test));
    if std::env::var_os(MARKER).is_some() {
        overdue::watch();
        return run_all(&arguments, tests);
    }
    if arguments.list || nothing {
        return run_all(&arguments, tests);
    }
    if let Some(reason) = machine::missing_for_guests() {
        return skip(arguments, tests, &reason);
    }
    let code = boot(spec, &arguments).unwrap_or_else(|e| {
        // Where the results of the tests would be. A failed write is ignored.
        drop(writeln!(io::stdout(), "{INTERRUPTED}{e:#}"));
        ExitCode::FAILURE
    });
    times::print();
    code
}

/// Runs the tests on this machine when clusters can be started here; else they count as ignored, as for [`in_guest`].
pub fn on_host(tests: Vec<Trial>) -> ExitCode {
    on_host_unless(machine::missing_for_clusters(), tests)
}

/// Runs the tests on this machine unless something is missing; then they count as ignored, as for [`in_guest`].
pub fn on_host_unless(missing: Option<String>, tests: Vec<Trial>) -> ExitCode {
    if let Some(status) = program::serve() {
        return status;
    }
    let arguments = Arguments::from_args();
    match missing {
        Some(reason) if !arguments.list => skip(arguments, tests, &reason),
        _ => run_all(&arguments, tests),
    }
}

fn boot(spec: GuestSpec, arguments: &Arguments) -> Result<ExitCode> {
    let program = std::env::current_exe().context("find this program's file")?;
    let mut command =
        vec![program.into_os_string().into_string().ok().context("the path of this program is not text")?];
    command.extend(std::env::args().skip(1));
    if arguments.test_threads.is_none() {
        command.push("--test-threads=1".to_owned());
    }
    if arguments.color.is_none() {
        // Inside standard output is a console in any case.
        let color = if io::stdout().is_terminal() { "always" } else { "never" };
        command.push(format!("--color={color}"));
    }
    let mut env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !NOT_INHERITED.contains(&name.as_str()) && !name.contains('%'))
        .collect();
    env.extend(spec.env);
    let finished = run(GuestSpec { command, env, output: Output::PassOn, ..spec })?;
    Ok(ExitCode::from(u8::try_from(finished.status).unwrap_or(u8::MAX)))
}

fn skip(arguments: Arguments, tests: Vec<Trial>, reason: &str) -> ExitCode {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    if ignore_all(arguments, tests, reason, ci) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports all tests as ignored. Returns false when that is a failure: in CI, when one of them was selected.
fn ignore_all(mut arguments: Arguments, tests: Vec<Trial>, reason: &str, ci: bool) -> bool {
    let wanted = tests.iter().any(|test| !arguments.is_filtered_out(test));
    (arguments.ignored, arguments.include_ignored) = (false, false);
    let tests = tests.into_iter().map(|test| test.with_ignored_flag(true)).collect();
    let failed = libtest_mimic::run(&arguments, tests).has_failed();
    print_line(&format!("skipped: {reason}"));
    if wanted && ci {
        print_line(
            "a CI run in which these tests are skipped proves nothing, so it fails: \
             provide what is missing, or unset CI",
        );
    }
    !(failed || wanted && ci)
}

fn print_line(line: &str) {
    // No other place to report a failure.
    drop(writeln!(io::stderr(), "{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(words: &[&str], ci: bool) -> bool {
        // Its result lines must not be taken for those of the program that this test is in
        let quiet = ["test", "--logfile", "/dev/null"];
        let arguments = Arguments::from_iter(quiet.into_iter().chain(words.iter().copied()));
        let test = Trial::test("one", || Err("it ran".into()));
        ignore_all(arguments, vec![test], "no machine", ci)
    }

    #[test]
    fn skipped_test_does_not_run_with_ignored_flags() {
        assert!(skipped(&[], false));
        assert!(skipped(&["--ignored"], false));
        assert!(skipped(&["--include-ignored"], false));
    }

    #[test]
    fn skipped_test_fails_in_ci_only_if_selected() {
        assert!(!skipped(&[], true));
        assert!(skipped(&["another"], true));
    }
}
