//! Compares the stock csi-provisioner with the provisioner in topolvm-controller: the same scenarios run with each, on
//! a real API server with kube-controller-manager, and the resulting objects and Events must be equal, but for the
//! differences that are deliberate.

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
mod run;
mod scenario;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::Trial;
use testbed::suite;

use self::provisioner::Provisioner;
use self::run::Report;
use self::scenario::Scenario;

/// Environment variable with a part of the names of the scenarios to run, for work on one of them.
const SELECTED: &str = "PARITY_SCENARIOS";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        suite::test("stock_provisioner_passes_all_parity_scenarios", pass_with_stock),
        suite::test("embedded_provisioner_equals_the_stock_one", compare),
        suite::test("provisioners_take_over_the_volumes_of_each_other", hand_over),
    ]
}

/// Runs csi-provisioner, once for all tests.
fn stock() -> Result<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    let run = || run(Provisioner::Stock).map_err(|error| format!("{error:#}"));
    REPORT.get_or_init(run).as_ref().map_err(|error| anyhow!("csi-provisioner: {error}"))
}

fn pass_with_stock() -> Result<()> {
    check(&stock()?.failures)
}

fn compare() -> Result<()> {
    let stock = stock()?;
    let mut embedded = run(Provisioner::Embedded).context("embedded provisioner")?;
    // Reported by the other test
    embedded.outcomes.retain(|scenario, _| stock.outcomes.contains_key(scenario));
    let is_complete = |scenario: &&String| embedded.outcomes.contains_key(*scenario);
    let complete: Vec<_> = stock.outcomes.keys().filter(is_complete).cloned().collect();
    let differences = difference::differences(&complete, &stock.outcomes, &embedded.outcomes);
    let compared = deliberate::DELIBERATE.iter().filter(|known| complete.iter().any(|name| name == known.scenario));
    let problems = difference::problems(&differences, &compared.copied().collect::<Vec<_>>());
    check(&[embedded.failures, problems].concat())
}

fn hand_over() -> Result<()> {
    check(&run::run(Provisioner::Stock, &[], &table::hand_overs(), &results()?)?.failures)
}

fn check(problems: &[String]) -> Result<()> {
    ensure!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
    Ok(())
}

fn run(provisioner: Provisioner) -> Result<Report> {
    #[expect(clippy::disallowed_methods, reason = "a developer selects scenarios")]
    let selected = std::env::var(SELECTED).unwrap_or_default();
    let is_selected = |scenario: &Scenario| scenario.name.contains(&selected);
    let select = |all: Vec<Scenario>| all.into_iter().filter(is_selected).collect::<Vec<_>>();
    let results = results()?;
    let report = run::run(provisioner, &select(table::parallel()), &select(table::alone()), &results)?;
    let file = results.join(format!("{provisioner:?}.json"));
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
