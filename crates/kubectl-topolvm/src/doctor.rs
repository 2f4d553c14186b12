//! `doctor`: checks of the installation. All that they look at is read first; each check is then a pure function of it.

mod checks;
mod facts;
mod rights;
mod webhooks;
mod workloads;

use jiff::Timestamp;
use serde::Serialize;

use crate::connection::Cluster;
use crate::error::Error;
use crate::output::{self, ReportFormat};
use crate::request::RequestError;

use facts::Facts;

/// Result of a check; a worse one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// As it should be.
    Ok,
    /// It cannot be told.
    Unknown,
    /// It works, and may not be meant.
    Warn,
    /// It does not work.
    Fail,
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) result: Outcome,
    pub(crate) found: String,
    /// Remedy; none if the result is [`Outcome::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Finding {
    fn ok(found: impl Into<String>) -> Self {
        Self { result: Outcome::Ok, found: found.into(), remedy: None }
    }

    fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { result: Outcome::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { result: Outcome::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Returns the findings of a check, or this one where it has none.
    fn ok_if_none(findings: Vec<Self>, found: impl Into<String>) -> Vec<Self> {
        if findings.is_empty() { vec![Self::ok(found)] } else { findings }
    }

    fn unknown(error: &RequestError) -> Self {
        let (found, remedy) = match error {
            RequestError::Forbidden { verb, resource } => (
                format!("you may not {verb} {resource}"),
                format!("run doctor as somebody who may {verb} {resource}, or get this right"),
            ),
            RequestError::Absent { resource } => {
                (error.to_string(), format!("see why the API server does not serve {resource}"))
            }
            RequestError::Failed { .. } => {
                (error.to_string(), "run doctor again; if it stays so, see what the API server logs".to_owned())
            }
        };
        Self { result: Outcome::Unknown, found, remedy: Some(remedy) }
    }
}

/// A check: its name, the question that it answers, and its function.
struct Check {
    name: &'static str,
    about: &'static str,
    run: CheckFn,
}

/// Returns at least one finding, or the error of the first fact that it needs and that could not be read.
type CheckFn = fn(&Facts) -> Result<Vec<Finding>, RequestError>;

/// A check as it is printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CheckResult {
    name: &'static str,
    about: &'static str,
    result: Outcome,
    findings: Vec<Finding>,
}

/// Results of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    api_group: &'static str,
    namespace: String,
    result: Outcome,
    checks: Vec<CheckResult>,
}

impl Report {
    /// Returns true if a check has failed, for the exit status.
    pub(crate) fn has_failed(&self) -> bool {
        self.result == Outcome::Fail
    }
}

/// Runs all checks on the installation whose programs are in `namespace`.
pub(crate) async fn run_checks(cluster: &Cluster, namespace: &str, now: Timestamp) -> Report {
    report(&Box::pin(Facts::read(cluster, namespace, now)).await)
}

fn report(facts: &Facts) -> Report {
    let checks: Vec<_> = checks::ALL.iter().map(|check| run_check(check, facts)).collect();
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
    // What is well is told where nothing else is to be told
    let findings = findings.into_iter().filter(|finding| finding.result != Outcome::Ok || result == Outcome::Ok);
    CheckResult { name: check.name, about: check.about, result, findings: findings.collect() }
}

/// The report as text.
pub(crate) fn render(format: ReportFormat, report: &Report) -> Result<String, Error> {
    output::render_report(format, report, || format_table(report))
}

fn format_table(report: &Report) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let indent = " ".repeat(10 + width + 3);
    let mut lines = Vec::new();
    for check in &report.checks {
        let mut begin = format!("{:<7}   {:<width$}   ", word(check.result), check.name);
        for finding in &check.findings {
            lines.push(format!("{begin}{}", finding.found));
            lines.extend(finding.remedy.as_ref().map(|remedy| format!("{indent}to do: {remedy}")));
            begin.clone_from(&indent);
        }
    }
    let count = |outcome| report.checks.iter().filter(|check| check.result == outcome).count();
    lines.push(format!(
        "{} checks: {} ok, {} warn, {} fail, {} unknown\n",
        report.checks.len(),
        count(Outcome::Ok),
        count(Outcome::Warn),
        count(Outcome::Fail),
        count(Outcome::Unknown),
    ));
    lines.join("\n")
}

const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Unknown => "unknown",
        Outcome::Warn => "warn",
        Outcome::Fail => "fail",
    }
}

#[cfg(test)]
mod tests;
