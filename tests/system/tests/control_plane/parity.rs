//! Compares the stock csi-provisioner, csi-resizer and csi-snapshotter with their replacements in topolvm-controller:
//! the same scenarios run with each, on a real API server with kube-controller-manager, and the resulting objects and
//! Events must be equal, but for the differences that are deliberate.

#![expect(
    clippy::wildcard_enum_match_arm,
    clippy::needless_pass_by_value,
    clippy::too_many_lines,
    reason = "JSON and steps have many kinds, most of which are treated alike; objects are values; a table is long"
)]

mod condition;
mod deliberate;
mod difference;
mod kinds;
mod merge;
mod observed;
mod outcome;
mod provisioner;
mod resizer;
mod run;
mod scenario;
mod snapshotter;
mod table;
mod tested;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::Trial;
use testbed::suite;

use self::difference::Deliberate;
use self::run::Report;
use self::scenario::Scenario;
use self::tested::{Tested, Work};

/// Environment variable with a part of the names of the scenarios to run, for work on one of them.
const SELECTED: &str = "PARITY_SCENARIOS";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        suite::test("stock_provisioner_passes_all_parity_scenarios", || check(&stock_provisioner()?.failures)),
        suite::test("embedded_provisioner_equals_the_stock_one", || {
            compare(stock_provisioner()?, Tested::embedded(Work::Provisioner), deliberate::DELIBERATE)
        }),
        suite::test("provisioners_take_over_the_volumes_of_each_other", || {
            hand_over(Tested::stock(Work::Provisioner), &table::hand_overs())
        }),
        suite::test("stock_resizer_passes_all_parity_scenarios", || check(&stock_resizer()?.failures)),
        suite::test("embedded_resizer_equals_the_stock_one", || {
            compare(stock_resizer()?, Tested::embedded(Work::Resizer), deliberate::OF_RESIZERS)
        }),
        suite::test("resizers_take_over_the_expansions_of_each_other", || {
            hand_over(Tested::stock(Work::Resizer), &table::resizer_hand_overs())
        }),
        suite::test("stock_snapshotter_passes_all_parity_scenarios", || check(&stock_snapshotter()?.failures)),
        suite::test("embedded_snapshotter_equals_the_stock_one", || {
            compare(stock_snapshotter()?, Tested::embedded(Work::Snapshotter), deliberate::OF_SNAPSHOTTERS)
        }),
        suite::test("snapshotters_take_over_the_contents_of_each_other", || {
            hand_over(Tested::stock(Work::Snapshotter), &table::snapshotter_hand_overs())
        }),
    ]
}

/// Runs csi-provisioner, once for all tests.
fn stock_provisioner() -> Result<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    run_once(&REPORT, Tested::stock(Work::Provisioner))
}

/// Runs csi-resizer, once for all tests.
fn stock_resizer() -> Result<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    run_once(&REPORT, Tested::stock(Work::Resizer))
}

/// Runs csi-snapshotter, once for all tests.
fn stock_snapshotter() -> Result<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    run_once(&REPORT, Tested::stock(Work::Snapshotter))
}

fn run_once(report: &'static OnceLock<Result<Report, String>>, tested: Tested) -> Result<&'static Report> {
    let run = || run(tested).map_err(|error| format!("{error:#}"));
    report.get_or_init(run).as_ref().map_err(|error| anyhow!("{}: {error}", tested.name()))
}

fn compare(stock: &Report, tested: Tested, known: &[Deliberate]) -> Result<()> {
    let mut embedded = run(tested).with_context(|| tested.name())?;
    // Reported by the other test
    embedded.outcomes.retain(|scenario, _| stock.outcomes.contains_key(scenario));
    let is_complete = |scenario: &&String| embedded.outcomes.contains_key(*scenario);
    let complete: Vec<_> = stock.outcomes.keys().filter(is_complete).cloned().collect();
    let differences = difference::differences(&complete, &stock.outcomes, &embedded.outcomes);
    let compared = known.iter().filter(|known| complete.iter().any(|name| name == known.scenario));
    let problems = difference::problems(&differences, &compared.copied().collect::<Vec<_>>());
    check(&[embedded.failures, problems].concat())
}

fn hand_over(tested: Tested, scenarios: &[Scenario]) -> Result<()> {
    // Its programs log under the same names as those of the comparison
    let logs = results()?.join("hand-over");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    check(&run::run(tested, &[], scenarios, &logs)?.failures)
}

fn check(problems: &[String]) -> Result<()> {
    ensure!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    Ok(())
}

fn run(tested: Tested) -> Result<Report> {
    #[expect(clippy::disallowed_methods, reason = "a developer selects scenarios")]
    let selected = std::env::var(SELECTED).unwrap_or_default();
    let is_selected = |scenario: &Scenario| scenario.name.contains(&selected);
    let select = |all: Vec<Scenario>| all.into_iter().filter(is_selected).collect::<Vec<_>>();
    let results = results()?;
    let (parallel, alone) = match tested.work {
        Work::Provisioner => (table::parallel(), table::alone()),
        Work::Resizer => (table::expansions_parallel(), table::expansions_alone()),
        Work::Snapshotter => (table::snapshots_parallel(), table::snapshots_alone()),
    };
    let report = run::run(tested, &select(parallel), &select(alone), &results)?;
    let file = results.join(format!("{}.json", tested.name()));
    fs::write(&file, serde_json::to_string_pretty(&report.outcomes)?)
        .with_context(|| format!("write {}", file.display()))?;
    Ok(report)
}

/// Returns the directory where a developer finds outcomes and logs.
fn results() -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("parity");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    Ok(directory)
}
