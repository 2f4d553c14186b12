//! The test layers, from fast to real, and the summary at the end.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::lint;
use crate::tools::{cargo, run as run_command};

/// A layer of tests. Each can be run alone: `make test-LAYER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Layer {
    /// Format, clippy, documentation, licences, generated files.
    Lint,
    /// Unit, property and service tests against the fakes: any machine.
    Unit,
    /// The User-Mode-Linux guest itself.
    Guest,
    /// Real LVM in a guest.
    Lvm,
    /// The test bed's control plane and nodes.
    Bed,
    /// Controllers, roles and admission against a real API server.
    ControlPlane,
    /// The product in a real cluster.
    Cluster,
    /// csi-sanity in a guest.
    Conformance,
}

const ALL: [Layer; 8] = [
    Layer::Lint,
    Layer::Unit,
    Layer::Guest,
    Layer::Lvm,
    Layer::Bed,
    Layer::ControlPlane,
    Layer::Cluster,
    Layer::Conformance,
];

impl Layer {
    fn name(self) -> &'static str {
        match self {
            Self::Lint => "lint",
            Self::Unit => "unit",
            Self::Guest => "guest",
            Self::Lvm => "lvm",
            Self::Bed => "bed",
            Self::ControlPlane => "control-plane",
            Self::Cluster => "cluster",
            Self::Conformance => "conformance",
        }
    }

    fn run(self) -> anyhow::Result<Counts> {
        match self {
            Self::Lint => {
                let (all, failed) = lint::run_all();
                Ok(Counts { passed: all - failed.len(), failed: failed.len(), skipped: 0 })
            }
            Self::Unit => {
                cargo_test(cargo(&["test", "--workspace", "--exclude", "system-tests", "--locked", "--quiet"]))
            }
            Self::Guest | Self::Lvm | Self::Bed | Self::ControlPlane | Self::Cluster | Self::Conformance => {
                cargo_test(self.command())
            }
        }
    }

    /// Of a whole-system layer.
    fn command(self) -> Command {
        cargo(&["test", "--package", "system-tests", "--locked", "--quiet", "--test", self.name()])
    }
}

/// What the tests of a layer did.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs the layers one after the other, all of them even after a failure, and prints what came of them.
pub(crate) fn run(layers: &[Layer]) -> anyhow::Result<()> {
    let layers = if layers.is_empty() { &ALL[..] } else { layers };
    if layers.iter().any(|layer| !matches!(layer, Layer::Lint | Layer::Unit)) {
        // The whole-system tests start the programs that stand beside them in the target directory
        run_command(&mut cargo(&["build", "--workspace", "--bins", "--locked"]))?;
    }
    let mut rows = Vec::new();
    let mut total = Counts::default();
    for &layer in layers {
        println!("\n=== {}", layer.name());
        let start = Instant::now();
        let counts = layer.run().unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", layer.name());
            Counts { failed: 1, ..Counts::default() }
        });
        if counts.failed > 0 {
            println!("run this layer alone with: make test-{}", layer.name());
        }
        total.add(counts);
        rows.push((layer, counts, start.elapsed()));
    }
    print_summary(&rows, total);
    if total.failed > 0 {
        bail!("{} failed", total.failed);
    }
    Ok(())
}

fn print_summary(rows: &[(Layer, Counts, Duration)], total: Counts) {
    println!("\n{:<14} {:>7} {:>7} {:>8} {:>8}", "layer", "passed", "failed", "skipped", "seconds");
    for (layer, counts, elapsed) in rows {
        let Counts { passed, failed, skipped } = counts;
        println!("{:<14} {passed:>7} {failed:>7} {skipped:>8} {:>8.1}", layer.name(), elapsed.as_secs_f64());
    }
    println!("\n{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
}

/// Runs the layer with real LVM as long as its random tests can make use of.
pub(crate) fn soak() -> anyhow::Result<()> {
    run_command(&mut cargo(&["build", "--workspace", "--bins", "--locked"]))?;
    let mut command = Layer::Lvm.command();
    command.env("TOPOLVM_SOAK", "1");
    let counts = cargo_test(command)?;
    if counts.failed > 0 {
        bail!("{} failed", counts.failed);
    }
    Ok(())
}

/// Runs cargo test with its output shown, and adds up the result line of every test binary.
fn cargo_test(mut command: Command) -> anyhow::Result<Counts> {
    let mut child = command.arg("--no-fail-fast").stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut counts = Counts::default();
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(result) = line.strip_prefix("test result: ") {
            counts.add(parse_result(result));
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if !status.success() && counts.failed == 0 {
        bail!("{command:?} failed before its tests could say so ({status})");
    }
    Ok(counts)
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
}
