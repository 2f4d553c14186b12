//! `doctor`: reads the facts for the checks of `topolvm-doctor`, and prints their report.

mod answer;
mod clock;
mod facts;
mod metrics;
mod rights;
mod snapshots;
mod webhooks;

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, OutputError, ReportFormat};
use jiff::Timestamp;
use topolvm_doctor::{CheckResult, Outcome, Report, examine};

/// Runs all checks on the installation whose programs are in `namespace`.
pub(crate) async fn run_checks(cluster: &Cluster, namespace: &str, now: Timestamp) -> Report {
    examine(&Box::pin(facts::read(cluster, namespace, now)).await)
}

/// The report as text.
pub(crate) fn render(format: ReportFormat, report: &Report) -> Result<String, OutputError> {
    output::render_report(format, report, || format_table(report))
}

fn format_table(report: &Report) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    let mut lines: Vec<_> = report.checks.iter().flat_map(|check| format_check(check, width)).collect();
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

/// Returns the lines of a check, whose name is padded to a width: findings with remedies, each command in a separate
/// line, and the explanation at the end.
fn format_check(check: &CheckResult, width: usize) -> Vec<String> {
    let indent = " ".repeat(10 + width + 3);
    let mut lines = Vec::new();
    let mut begin = format!("{:<7}   {:<width$}   ", check.result.as_str(), check.name);
    for finding in &check.findings {
        lines.push(format!("{begin}{}", finding.found));
        lines.extend(finding.remedy.as_ref().map(|remedy| format!("{indent}to do: {remedy}")));
        lines.extend(finding.commands.iter().map(|command| format!("{indent}run: {command}")));
        begin.clone_from(&indent);
    }
    if check.result >= Outcome::Warn {
        lines.push(format!("{indent}why: {}", check.explanation));
    }
    lines
}

#[cfg(test)]
mod tests;
