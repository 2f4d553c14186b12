//! The test layers, from fast to real, and the summary at the end.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use testbed::suite;
use testbed::times::TIME;

use crate::deb;
use crate::lint;
use crate::tools::{cargo, repository, run as run_command, target_directory};

/// A layer of tests. Each can be run alone: `make test-LAYER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Layer {
    /// Format, clippy, documentation, licences, generated files.
    Lint,
    /// Unit, property and service tests against the fakes: any machine.
    Unit,
    /// The chart, rendered by helm.
    Chart,
    /// The User-Mode-Linux guest itself.
    Guest,
    /// Real LVM in a guest.
    Lvm,
    /// The Debian package of lvmd under a real systemd.
    Systemd,
    /// The test bed's control plane and nodes.
    Testbed,
    /// Controllers, roles and admission against a real API server.
    ControlPlane,
    /// The product in a real cluster.
    Cluster,
    /// csi-sanity in a guest.
    Conformance,
}

/// Lines of what a failed test printed that are shown again in the summary, beside the last one.
const REASON_LINES: usize = 4;
/// The same for a test that hung: the processes of a guest.
const HANG_LINES: usize = 60;
/// Most characters of each.
const REASON_LENGTH: usize = 500;

/// Most tests whose times the summary shows.
const MOST_TIMES: usize = 20;

/// Layers of the soak. Those of the test bed are in it alone, since all other layers use what they test.
const IN_SOAK: [Layer; 6] =
    [Layer::Lvm, Layer::Cluster, Layer::ControlPlane, Layer::Chart, Layer::Testbed, Layer::Guest];

/// The purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Tests that each change must pass.
    Test,
    /// Tests that take too long for each change.
    Soak,
}

/// The tests from the longest to the shortest.
const BY_LENGTH: [Layer; 9] = [
    Layer::Cluster,
    Layer::Lvm,
    Layer::Conformance,
    Layer::Testbed,
    Layer::Systemd,
    Layer::Guest,
    Layer::Unit,
    Layer::ControlPlane,
    Layer::Chart,
];

impl Layer {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns true for the layers of a run for which none are named.
    fn is_default(self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Test => !matches!(self, Self::Guest | Self::Testbed),
            Purpose::Soak => IN_SOAK.contains(&self),
        }
    }

    fn run(self, purpose: Purpose) -> anyhow::Result<Counts> {
        if self == Self::Lint {
            let lint::Outcome { times, failed } = lint::run_all();
            let passed = times.len() - failed.len();
            let failures: Vec<_> =
                failed.iter().map(|&step| Failure { test: step.to_owned(), said: Vec::new() }).collect();
            return Ok(Counts { passed, failed: failures.len(), failures, times, ..Counts::default() });
        }
        let mut command = self.command()?;
        if purpose == Purpose::Soak {
            command.env("TOPOLVM_SOAK", "1");
        }
        self.test(command)
    }

    /// Returns the command that runs the tests of the layer. It selects them from the whole workspace: for a part of it
    /// cargo would choose other features of the libraries, and build them again.
    fn command(self) -> anyhow::Result<Command> {
        let mut command = cargo(&["test", "--locked", "--quiet", "--no-fail-fast", "--workspace"]);
        command.args(self.targets()?);
        if self == Self::Cluster {
            // Most of its trials wait for a third of their time
            command.args(["--", "--test-threads=3"]);
        }
        Ok(command)
    }

    /// Options that select the test programs of the layer.
    fn targets(self) -> anyhow::Result<Vec<String>> {
        if self != Self::Unit {
            return Ok(vec!["--test".to_owned(), self.name()]);
        }
        let mut targets = vec!["--lib".to_owned(), "--bins".to_owned()];
        for name in integration_tests()? {
            targets.extend(["--test".to_owned(), name]);
        }
        Ok(targets)
    }

    /// Runs cargo test with its output shown, each line with the name of the layer and the seconds since its start, and
    /// adds up the result line of every test binary.
    fn test(self, mut command: Command) -> anyhow::Result<Counts> {
        let start = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
        let output = child.stdout.take().context("cargo has no output")?;
        let mut counts = Counts::default();
        let mut is_failure = false;
        let (mut interruptions, mut tail) = (Vec::new(), VecDeque::new());
        for line in BufReader::new(output).lines() {
            let line = line?;
            if let Some(result) = line.strip_prefix("test result: ") {
                counts = counts.plus(parse_result(result));
            }
            if let Some(time) = parse_time(&line) {
                counts.times.push(time);
                continue;
            }
            if let Some(test) = parse_failure(&line) {
                counts.failures.push(Failure { test: test.to_owned(), said: Vec::new() });
                is_failure = true;
            } else if line == "failures:" {
                is_failure = false;
            } else if let Some(failure) = counts.failures.last_mut().filter(|_| is_failure && !line.is_empty()) {
                failure.said.push(line.clone());
            }
            println!("{:<13} {:>5} | {line}", self.name(), start.elapsed().as_secs());
            if is_interruption(&line) {
                interruptions.push(line);
            } else if !line.is_empty() {
                tail.push_back(line);
                tail.drain(..tail.len().saturating_sub(REASON_LINES));
            }
        }
        let status = child.wait()?;
        if !status.success() && counts.failed == 0 {
            interruptions.extend(tail);
            counts = counts.plus(Counts::of_error(format!("cargo ended with {status}"), interruptions));
        }
        Ok(counts)
    }
}

/// Numbers of tests of a layer by result.
#[derive(Clone, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Those that failed.
    failures: Vec<Failure>,
    /// Seconds and names of the steps of lint, and of the tests that the whole-system layers have run, with the waits
    /// for their clusters.
    times: Vec<(f64, String)>,
}

/// A test that failed.
#[derive(Clone, Debug)]
struct Failure {
    test: String,
    /// The lines that it printed.
    said: Vec<String>,
}

impl Failure {
    /// Returns where its reason most likely is: the first lines that it printed, and the last, the beginning of each.
    fn reason(&self) -> impl Iterator<Item = String> {
        let hung = self.said.first().is_some_and(|line| line.starts_with(suite::INTERRUPTED));
        let lines = if hung { HANG_LINES } else { REASON_LINES };
        let last = self.said.iter().skip(lines).last();
        self.said.iter().take(lines).chain(last).map(|line| line.chars().take(REASON_LENGTH).collect())
    }
}

impl Counts {
    /// Returns one failure that no test has reported itself.
    fn of_error(error: String, said: Vec<String>) -> Self {
        Self { failed: 1, failures: vec![Failure { test: error, said }], ..Self::default() }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
            failures: [self.failures, other.failures].concat(),
            times: [self.times, other.times].concat(),
        }
    }
}

/// Result and duration of a layer.
type Row = (Layer, Counts, Duration);

/// Runs layers, or those of `make test`.
pub(crate) fn test(layers: &[Layer]) -> anyhow::Result<()> {
    run(layers, Purpose::Test)
}

/// Runs what is too long for each change in these layers, or in all that have such tests.
pub(crate) fn soak(layers: &[Layer]) -> anyhow::Result<()> {
    run(layers, Purpose::Soak)
}

/// Runs the layers, all of them even after a failure, and prints what came of them. A guest has one CPU and a layer
/// waits much, so that two of them run side by side, after lint and what must be built.
fn run(layers: &[Layer], purpose: Purpose) -> anyhow::Result<()> {
    let of_purpose = Layer::value_variants().iter().copied().filter(|layer| layer.is_default(purpose));
    let layers = if layers.is_empty() { of_purpose.collect() } else { layers.to_vec() };
    let (lint, mut tests): (Vec<Layer>, Vec<Layer>) = layers.into_iter().partition(|layer| *layer == Layer::Lint);
    let mut rows: Vec<Row> = lint.into_iter().map(|layer| measure(layer, purpose)).collect();
    let start = Instant::now();
    build(&tests)?;
    let build_time = start.elapsed();
    // The longest first, so that none is left alone at the end
    tests.sort_by_key(|layer| BY_LENGTH.iter().position(|other| other == layer));
    rows.extend(side_by_side(tests, purpose));
    rows.sort_by_key(|(layer, _, _)| *layer);
    let total = rows.iter().fold(Counts::default(), |total, (_, counts, _)| total.plus(counts.clone()));
    print_summary(&rows, build_time, &total);
    if total.failed > 0 {
        bail!("{} failed", total.failed);
    }
    Ok(())
}

/// Builds everything that the layers need, at once: several cargos at the same time would wait for each other.
fn build(layers: &[Layer]) -> anyhow::Result<()> {
    // The whole-system tests start the programs that stand beside them in the target directory
    let mut build = cargo(&["build", "--locked", "--workspace", "--bins"]);
    for layer in layers {
        build.args(if *layer == Layer::Unit { vec!["--tests".to_owned()] } else { layer.targets()? });
    }
    run_command(&mut build)?;
    if layers.contains(&Layer::Systemd) {
        deb::package(deb::Program::Debug)?;
    }
    Ok(())
}

/// Names of the integration tests of the product's crates.
fn integration_tests() -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for package in fs::read_dir(repository().join("crates")).context("list the crates")? {
        let Ok(tests) = fs::read_dir(package?.path().join("tests")) else { continue };
        for test in tests {
            names.extend(test?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

/// Runs layers two at a time, begun in this order.
fn side_by_side(layers: Vec<Layer>, purpose: Purpose) -> Vec<Row> {
    let waiting = Mutex::new(VecDeque::from(layers));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || std::iter::from_fn(next).map(|layer| measure(layer, purpose)).collect::<Vec<Row>>();
    thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut rows = work();
        match other.join() {
            Ok(more) => rows.extend(more),
            // Its layers must not be missing from the summary as if they had not been requested
            Err(panic) => std::panic::resume_unwind(panic),
        }
        rows
    })
}

fn measure(layer: Layer, purpose: Purpose) -> Row {
    println!("\n=== {}", layer.name());
    let start = Instant::now();
    let counts = layer.run(purpose).unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", layer.name());
        Counts::of_error(format!("{error:#}"), Vec::new())
    });
    if counts.failed > 0 {
        println!("run this layer alone with: make test-{}", layer.name());
    }
    (layer, counts, start.elapsed())
}

/// Prints what matters most last: of a long output people and machines often keep the end alone.
fn print_summary(rows: &[Row], build_time: Duration, total: &Counts) {
    println!("\nlongest tests, in seconds:");
    times_of_tests(rows).iter().take(MOST_TIMES).for_each(|line| println!("{line}"));
    match keep_times(rows) {
        Ok(file) => println!("all times: {}", file.display()),
        Err(error) => eprintln!("{error:#}"),
    }
    println!("\n{:<14} {:>7} {:>7} {:>8} {:>8}", "layer", "passed", "failed", "skipped", "seconds");
    println!("{:<39} {:>8.1}", "(build)", build_time.as_secs_f64());
    for (layer, counts, elapsed) in rows {
        let Counts { passed, failed, skipped, .. } = counts;
        println!("{:<14} {passed:>7} {failed:>7} {skipped:>8} {:>8.1}", layer.name(), elapsed.as_secs_f64());
    }
    for (layer, counts, _) in rows {
        for failure in &counts.failures {
            println!("failed: {}: {}", layer.name(), failure.test);
            failure.reason().for_each(|line| println!("    {line}"));
        }
    }
    println!("\n{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
}

/// Writes the times of all tests of this run into the target directory, so that two runs can be compared.
fn keep_times(rows: &[Row]) -> anyhow::Result<PathBuf> {
    let file = target_directory()?.join(format!("test-times-{}.txt", jiff::Zoned::now().strftime("%Y%m%dT%H%M%S")));
    fs::write(&file, times_of_tests(rows).join("\n") + "\n").with_context(|| format!("write {}", file.display()))?;
    Ok(file)
}

/// Returns a line for each test with its time and layer, the longest first.
fn times_of_tests(rows: &[Row]) -> Vec<String> {
    let mut times: Vec<_> = rows
        .iter()
        .flat_map(|(layer, counts, _)| counts.times.iter().map(|(time, test)| (*layer, *time, test.as_str())))
        .collect();
    times.sort_by(|(_, one, _), (_, other, _)| other.total_cmp(one));
    times.into_iter().map(|(layer, time, test)| format!("{time:>8.1} {}: {test}", layer.name())).collect()
}

/// Returns true for the line of a test whose guest was killed while it ran, and for the line with the reason.
fn is_interruption(line: &str) -> bool {
    line.contains(suite::INTERRUPTED) || line.starts_with("test ") && line.trim_end().ends_with("...")
}

/// Reads the time of a test: seconds and name.
fn parse_time(line: &str) -> Option<(f64, String)> {
    let (time, name) = line.strip_prefix(TIME)?.split_once(' ')?;
    Some((time.parse().ok()?, name.to_owned()))
}

/// Reads the name of a test in the line above what it printed: `---- NAME stdout ----`, of libtest-mimic
/// `---- NAME ----`.
fn parse_failure(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

/// Reads `ok. 12 passed; 0 failed; 3 ignored; …`; what libtest calls ignored was skipped for a reason that it printed.
fn parse_result(line: &str) -> Counts {
    let mut counts = Counts::default();
    let words: Vec<&str> = line.split([' ', ';']).filter(|word| !word.is_empty()).collect();
    for pair in words.windows(2) {
        if let [number, what] = pair
            && let Ok(number) = number.parse()
        {
            match *what {
                "passed" => counts.passed = number,
                "failed" => counts.failed = number,
                "ignored" => counts.skipped = number,
                _ => {}
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_line_of_a_test_binary_is_read() {
        let counts =
            parse_result("FAILED. 12 passed; 2 failed; 3 ignored; 0 measured; 4 filtered out; finished in 0.03s");
        assert_eq!((counts.passed, counts.failed, counts.skipped), (12, 2, 3));
    }

    #[test]
    fn a_long_reason_is_shortened_to_its_ends() {
        let said = (0..REASON_LINES + 2).map(|line| line.to_string()).collect();
        let failure = Failure { test: String::new(), said };
        assert_eq!(failure.reason().collect::<Vec<_>>(), ["0", "1", "2", "3", "5"]);
        let hung = format!("{}it hangs", suite::INTERRUPTED);
        let failure = Failure { test: String::new(), said: vec![hung; REASON_LINES + 2] };
        assert_eq!(failure.reason().count(), REASON_LINES + 2);
        let failure = Failure { test: String::new(), said: vec!["ü".repeat(REASON_LENGTH + 1)] };
        assert_eq!(failure.reason().collect::<Vec<_>>(), ["ü".repeat(REASON_LENGTH)]);
    }

    #[test]
    fn interruption_is_a_reason_or_a_test_without_a_result() {
        assert!(is_interruption("test lvmd_waits     ... "));
        assert!(is_interruption(&format!("{}the guest was killed", suite::INTERRUPTED)));
        assert!(is_interruption(&format!("test lvmd_waits     ... {}it hangs", suite::INTERRUPTED)));
        assert!(!is_interruption("test lvmd_waits     ... ok") && !is_interruption("running 3 tests ..."));
    }

    #[test]
    fn summary_shows_the_longest_tests_first() {
        let times = (1..=21).filter_map(|time| parse_time(&format!("{TIME}{time}.5 t{time}")));
        let rows = [(Layer::Lvm, Counts { times: times.collect(), ..Counts::default() }, Duration::ZERO)];
        let times = times_of_tests(&rows);
        assert_eq!((times.len(), times[0].as_str()), (21, "    21.5 lvm: t21"));
        assert_eq!(parse_time("test timed ... ok"), None);
    }

    #[test]
    fn the_name_of_a_failed_test_is_read() {
        assert_eq!(parse_failure("---- tests::a stdout ----"), Some("tests::a"));
        assert_eq!(parse_failure("---- a_pod_waits ----"), Some("a_pod_waits"));
        assert_eq!(parse_failure("test a_pod_waits ... ok"), None);
    }
}
