//! The findings of a run of the checks, for a later display.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::finding::{Finding, Outcome};
use crate::report::{CheckResult, Report};

/// The findings of a run of the checks, with the time of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The time.
    pub at: Timestamp,
    /// The findings that are not [`Outcome::Ok`] with the names of their checks, the worst first.
    pub findings: Vec<(&'static str, Finding)>,
    /// Number of findings that are left out.
    pub more: usize,
}

impl Checked {
    /// Takes what a report has found, `most` findings at most: a cluster without one of its nodes may have thousands.
    #[must_use]
    pub fn of(report: &Report, at: Timestamp, most: usize) -> Self {
        let of_check = |check: &CheckResult| {
            let name = check.name;
            let found = check.findings.iter().filter(|finding| finding.result != Outcome::Ok);
            found.map(|finding| (name, finding.clone())).collect::<Vec<_>>()
        };
        let mut findings: Vec<_> = report.checks.iter().flat_map(of_check).collect();
        findings.sort_by_key(|(_, finding)| Reverse(finding.result));
        let more = findings.len().saturating_sub(most);
        findings.truncate(most);
        findings.shrink_to_fit();
        Self { at, findings, more }
    }
}

#[cfg(test)]
mod tests {
    use topolvm_api::ApiFlavor;

    use super::*;

    #[test]
    fn findings_are_sorted_by_severity_and_omissions_counted() {
        let check = |name, findings: Vec<Finding>| CheckResult {
            name,
            about: "",
            explanation: "",
            result: Outcome::Fail,
            findings,
        };
        let report = Report {
            api_group: ApiFlavor::TopoLvm.group(),
            namespace: "n".to_owned(),
            result: Outcome::Fail,
            checks: vec![
                check("a", vec![Finding::warn("w1", ""), Finding::fail("f1", "")]),
                check("b", vec![Finding::ok("fine"), Finding::fail("f2", "")]),
            ],
        };
        let checked = Checked::of(&report, Timestamp::UNIX_EPOCH, 2);
        let found: Vec<_> = checked.findings.iter().map(|(check, finding)| (*check, finding.found.as_str())).collect();
        assert_eq!((found, checked.more), (vec![("a", "f1"), ("b", "f2")], 1));
    }
}
