//! The alert rules and the dashboard: promtool runs the tests of the rules, and reads every query.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::chart::{self, run_command};
use system_tests::{commands, monitoring};
use testbed::assets;

use crate::objects::Objects;

/// Runs the tests of the rules, of which each alert has one.
pub(crate) fn test_alerts() -> Result<()> {
    let tests = monitoring::directory().join("topolvm-rules-test.yaml");
    let text = fs::read_to_string(&tests).context("read the tests of the rules")?;
    let alerts = monitoring::rule_names(&monitoring::read_rules()?).alerts;
    ensure!(!alerts.is_empty(), "there are no alerts");
    for name in alerts {
        ensure!(text.contains(&format!("alertname=\"{name}\"")), "no test fires {name}");
    }
    promtool(&["test", "rules"], &tests)
}

/// Has promtool read the queries of the dashboard and of the documentation as if they were rules.
pub(crate) fn check_queries() -> Result<()> {
    let queries = monitoring::queries_of_dashboard()?;
    ensure!(!queries.is_empty(), "the dashboard has no query");
    let of_page = commands::queries("metrics.md", "Queries")?;
    let expressions = queries.iter().map(|query| &query.expression).chain(&of_page);
    let rules: Vec<_> = (0..)
        .zip(expressions)
        .map(|(number, expression): (usize, _)| json!({"record": format!("query{number}"), "expr": expression}))
        .collect();
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().context("make a file for queries")?;
    fs::write(file.path(), json!({"groups": [{"name": "queries", "rules": rules}]}).to_string())?;
    promtool(&["check", "rules"], file.path())?;
    for query in queries {
        ensure!(!query.expression.contains('$'), "{}: another variable: {}", query.panel, query.expression);
    }
    Ok(())
}

/// Renders the rules for people whose pages are elsewhere: each alert links to its section there.
pub(crate) fn check_runbooks() -> Result<()> {
    let (page, file) = ("https://docs.example.com/docs/monitoring.html", chart::values("monitoring"));
    let set = format!("prometheus.rules.runbook={page}");
    let rendered = chart::render("topolvm", "system", &["--values", &file.to_string_lossy(), "--set", &set])?;
    let objects = Objects::parse(&rendered)?;
    let rules = &objects.find("PrometheusRule", "topolvm")?["spec"];
    let groups = rules["groups"].as_array().into_iter().flatten();
    let alerts = groups.filter_map(|group| group["rules"].as_array()).flatten().filter(|rule| !rule["alert"].is_null());
    let links: Vec<_> = alerts.map(|alert| (&alert["alert"], &alert["annotations"]["runbook_url"])).collect();
    ensure!(links.len() == monitoring::rule_names(&monitoring::read_rules()?).alerts.len(), "of alerts: {links:#?}");
    for (alert, link) in links {
        let section = alert.as_str().context("an alert without a name")?.to_lowercase();
        ensure!(*link == format!("{page}#{section}"), "{alert} links to {link}");
    }
    Ok(())
}

fn promtool(arguments: &[&str], file: &Path) -> Result<()> {
    let mut command = Command::new(assets::prometheus()?.join("promtool"));
    run_command(command.args(arguments).arg(file)).map(drop)
}
