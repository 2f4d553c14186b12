//! The report: results of all checks.

use serde::Serialize;

use crate::check::Check;
use crate::checks;
use crate::facts::Facts;
use crate::finding::{Finding, Outcome};

/// A check with its findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Name of the check, for programs too.
    pub name: &'static str,
    /// Requirement that the check verifies.
    pub about: &'static str,
    /// Meaning of a failure: what then goes wrong, and why.
    pub explanation: &'static str,
    /// The worst result of its findings.
    pub result: Outcome,
    /// At least one.
    pub findings: Vec<Finding>,
}

/// Results of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// API group of the installation.
    pub api_group: &'static str,
    /// Namespace of the programs.
    pub namespace: String,
    /// The worst result of the checks.
    pub result: Outcome,
    /// All checks in the order in which an administrator would make them.
    pub checks: Vec<CheckResult>,
}

impl Report {
    /// Returns true if a check has failed, for the exit status.
    pub fn has_failed(&self) -> bool {
        self.result == Outcome::Fail
    }
}

/// Runs all checks.
pub fn examine(facts: &Facts) -> Report {
    run_checks(facts, checks::ALL.iter())
}

/// Runs the checks with these names, for callers that have read only the facts of these.
pub fn examine_only(facts: &Facts, names: &[&str]) -> Report {
    run_checks(facts, checks::ALL.iter().filter(|check| names.contains(&check.name)))
}

fn run_checks<'a>(facts: &Facts, checks: impl Iterator<Item = &'a Check>) -> Report {
    let checks: Vec<_> = checks.map(|check| run_check(check, facts)).collect();
    Report {
        api_group: facts.flavor.group(),
        namespace: facts.namespace.clone(),
        result: checks.iter().map(|check| check.result).max().unwrap_or(Outcome::Ok),
        checks,
    }
}

fn run_check(check: &Check, facts: &Facts) -> CheckResult {
    let findings = (check.run)(facts).unwrap_or_else(|error| vec![Finding::unknown(&error)]);
    let result = findings.iter().map(|finding| finding.result).max().unwrap_or(Outcome::Ok);
    // A good result is reported only if there is no other
    let findings = findings.into_iter().filter(|finding| finding.result != Outcome::Ok || result == Outcome::Ok);
    let Check { name, about, explanation, .. } = *check;
    CheckResult { name, about, explanation, result, findings: findings.collect() }
}
