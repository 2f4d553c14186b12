//! Compares the stock csi-provisioner with the provisioner in topolvm-controller: the same scenarios run with each, on a
//! real API server with kube-controller-manager, and the resulting objects and Events must be equal, but for the
//! differences that are deliberate.

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
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::Trial;
use testbed::suite;

use self::provisioner::Provisioner;
use self::run::Outcomes;
use self::scenario::Scenario;

/// Environment variable with a part of the names of the scenarios to run, for work on one of them.
const SELECTED: &str = "PARITY_SCENARIOS";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        suite::test("stock_provisioner_passes_all_parity_scenarios", || stock().map(drop)),
        suite::test("embedded_provisioner_equals_the_stock_one", compare),
        suite::test("provisioners_take_over_the_volumes_of_each_other", hand_over),
    ]
}

/// Returns the outcomes of csi-provisioner, which runs once for all tests.
fn stock() -> Result<&'static Outcomes> {
    static OUTCOMES: OnceLock<Result<Outcomes, String>> = OnceLock::new();
    let run = || run(Provisioner::Stock).map_err(|error| format!("{error:#}"));
    OUTCOMES.get_or_init(run).as_ref().map_err(|error| anyhow!("csi-provisioner: {error}"))
}

fn compare() -> Result<()> {
    let stock = stock()?;
    let embedded = run(Provisioner::Embedded).context("embedded provisioner")?;
    let differences = difference::differences(stock, &embedded);
    let problems = difference::problems(&differences, deliberate::DELIBERATE);
    ensure!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
    Ok(())
}

fn hand_over() -> Result<()> {
    run::run(Provisioner::Stock, &[], &table::hand_overs()).map(drop)
}

fn run(provisioner: Provisioner) -> Result<Outcomes> {
    let selected = std::env::var(SELECTED).unwrap_or_default();
    let is_selected = |scenario: &Scenario| scenario.name.contains(&selected);
    let select = |all: Vec<Scenario>| all.into_iter().filter(is_selected).collect::<Vec<_>>();
    let outcomes = run::run(provisioner, &select(table::parallel()), &select(table::alone()))?;
    write(provisioner, &outcomes)?;
    Ok(outcomes)
}

/// Writes the outcomes where a developer finds them.
fn write(provisioner: Provisioner, outcomes: &Outcomes) -> Result<()> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("parity");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let file = directory.join(format!("{provisioner:?}.json"));
    fs::write(&file, serde_json::to_string_pretty(outcomes)?).with_context(|| format!("write {}", file.display()))
}
