//! The table of the alerts, and the check that each has a section of its page.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::{code, table};
use crate::generate::ALERT_RULES;
use crate::tools::repository;

/// The page with a section for each alert.
pub(super) const PAGE: &str = "docs/monitoring.md";

/// A file with rules of Prometheus.
#[derive(Debug, Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// An alert, or a recording rule, which lacks most of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    alert: String,
    r#for: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Labels {
    severity: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    summary: String,
    description: String,
    runbook_url: String,
}

/// Returns the table of the alerts, each of which must have a section of the page, as each section an alert.
pub(super) fn of_rules() -> anyhow::Result<String> {
    let rules: RuleFile = serde_saphyr::from_str(&read(ALERT_RULES)?).context(ALERT_RULES)?;
    let rules: Vec<Rule> = rules.groups.into_iter().flat_map(|group| group.rules).collect();
    let alerts: Vec<&Rule> = rules.iter().filter(|rule| !rule.alert.is_empty()).collect();
    check_sections(&alerts, &read(PAGE)?)?;
    let rows = alerts.iter().map(|rule| {
        let name = format!("[{}](#{})", rule.alert, rule.alert.to_lowercase());
        [name, rule.labels.severity.clone(), code(&rule.r#for)]
    });
    Ok(table(["Alert", "Severity", "After"], rows))
}

fn check_sections(alerts: &[&Rule], page: &str) -> anyhow::Result<()> {
    let sections: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("### ")).filter(|name| name.starts_with("Topolvm")).collect();
    let names: BTreeSet<&str> = alerts.iter().map(|rule| rule.alert.as_str()).collect();
    ensure!(names.len() == alerts.len(), "an alert is there twice in {ALERT_RULES}");
    let odd: Vec<_> = names.symmetric_difference(&sections).collect();
    ensure!(odd.is_empty(), "not both an alert of {ALERT_RULES} and a section of {PAGE}: {odd:?}");
    for rule in alerts {
        let Annotations { summary, description, runbook_url } = &rule.annotations;
        let (name, severity) = (&rule.alert, rule.labels.severity.as_str());
        ensure!(["warning", "critical"].contains(&severity), "{name}: the severity is {severity:?}");
        ensure!(!summary.is_empty() && description.contains("Next"), "{name}: say what is wrong and what is next");
        let expected = format!("{PAGE}#{}", name.to_lowercase());
        ensure!(*runbook_url == expected, "{name}: runbook_url is {runbook_url:?} and not {expected}");
    }
    Ok(())
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(name: &str) -> Rule {
        Rule {
            alert: name.to_owned(),
            labels: Labels { severity: "warning".to_owned() },
            annotations: Annotations {
                summary: "A disk is missing".to_owned(),
                description: "Next: pvs".to_owned(),
                runbook_url: format!("{PAGE}#{}", name.to_lowercase()),
            },
            ..Rule::default()
        }
    }

    #[test]
    fn alert_without_section_or_section_without_alert_is_an_error() {
        let (one, two) = (alert("TopolvmOne"), alert("TopolvmTwo"));
        let page = "### TopolvmOne\n\n### Other\n";
        check_sections(&[&one], page).unwrap();
        let error = check_sections(&[&one, &two], page).unwrap_err().to_string();
        assert!(error.contains("[\"TopolvmTwo\"]"), "{error}");
        let error = check_sections(&[], page).unwrap_err().to_string();
        assert!(error.contains("[\"TopolvmOne\"]"), "{error}");
    }

    #[test]
    fn an_alert_that_says_nothing_to_do_is_refused() {
        let mut silent = alert("TopolvmOne");
        "Nothing".clone_into(&mut silent.annotations.description);
        let error = check_sections(&[&silent], "### TopolvmOne\n").unwrap_err().to_string();
        assert!(error.contains("what is next"), "{error}");
    }
}
