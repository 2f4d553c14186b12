//! Reads the rules and the queries of the dashboard from the files that ship.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use testbed::topolvm;

/// Divides the durations after which alerts fire, and ranges of hours, so that a test sees them fire: an hour becomes
/// four seconds.
const FASTER: u64 = 900;
/// Shortest range in fast time, in milliseconds: series with a sample each second, one of them missing now and then.
const SHORTEST_RANGE: u64 = 20_000;

/// A query of the dashboard.
#[derive(Debug)]
pub struct Query {
    /// Title of the panel, or name of the variable.
    pub panel: String,
    /// The expression, without variables.
    pub expression: String,
}

/// Names of the rules.
#[derive(Debug, Default)]
pub struct RuleNames {
    /// Names of the alerts.
    pub alerts: Vec<String>,
    /// Names of the series that are recorded.
    pub records: Vec<String>,
}

/// Returns the directory of the rules and of the dashboard.
pub fn directory() -> PathBuf {
    topolvm::manifests().join("../monitoring")
}

/// Reads the file with the rules.
pub fn read_rules() -> Result<Value> {
    let path = directory().join("topolvm-rules.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML", path.display()))
}

/// Returns the names of the rules.
pub fn rule_names(rules: &Value) -> RuleNames {
    let mut names = RuleNames::default();
    let groups = rules.get("groups").and_then(Value::as_array).into_iter().flatten();
    for rule in groups.filter_map(|group| group.get("rules")?.as_array()).flatten() {
        let name = |key: &str| rule.get(key).and_then(Value::as_str).map(str::to_owned);
        names.alerts.extend(name("alert"));
        names.records.extend(name("record"));
    }
    names
}

/// Returns the rules with alerts that fire 900 times sooner after their condition is true, and with ranges of seconds
/// instead of hours. Ranges of minutes stay: rates have a value as soon as there are two samples.
pub fn rules_in_fast_time(mut rules: Value) -> Result<Value> {
    let groups = rules.get_mut("groups").and_then(Value::as_array_mut).context("no groups of rules")?;
    for rule in groups.iter_mut().filter_map(|group| group.get_mut("rules")?.as_array_mut()).flatten() {
        if let Some(duration) = rule.get_mut("for") {
            let text = duration.as_str().context("a duration is no text")?;
            *duration = format!("{}ms", milliseconds(text)? / FASTER).into();
        }
        if let Some(expression) = rule.get_mut("expr") {
            *expression = with_short_ranges(expression.as_str().context("an expression is no text")?)?.into();
        }
    }
    Ok(rules)
}

/// Shortens the ranges of hours in an expression, such as `a[6h]`.
fn with_short_ranges(expression: &str) -> Result<String> {
    let mut pieces = expression.split('[');
    let mut text = vec![pieces.next().unwrap_or_default().to_owned()];
    for piece in pieces {
        let (range, rest) = piece.split_once(']').with_context(|| format!("a range without end: {expression}"))?;
        let range = if range.ends_with('h') {
            format!("{}ms", (milliseconds(range)? / FASTER).max(SHORTEST_RANGE))
        } else {
            range.to_owned()
        };
        text.push(format!("{range}]{rest}"));
    }
    Ok(text.join("["))
}

/// Parses a duration in minutes or hours, such as 15m.
fn milliseconds(duration: &str) -> Result<u64> {
    let (number, unit) = duration.split_at_checked(duration.len().saturating_sub(1)).unwrap_or_default();
    let unit = match unit {
        "m" => 60_000,
        "h" => 3_600_000,
        _ => anyhow::bail!("{duration} is neither in minutes nor in hours"),
    };
    Ok(number.parse::<u64>().with_context(|| format!("{duration} is no duration"))? * unit)
}

/// Returns the queries of the dashboard, for all nodes, device classes and namespaces, and with rates over a minute;
/// and those for the values of its variables.
pub fn queries_of_dashboard() -> Result<Vec<Query>> {
    let path = directory().join("topolvm-dashboard.json");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let dashboard: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    let panels = dashboard.get("panels").and_then(Value::as_array).context("no panels")?;
    let mut queries = queries_of_variables(&dashboard)?;
    for panel in panels {
        let title = panel.get("title").and_then(Value::as_str).context("a panel without a title")?;
        for target in panel.get("targets").and_then(Value::as_array).into_iter().flatten() {
            let expression =
                target.get("expr").and_then(Value::as_str).with_context(|| format!("{title}: no query"))?;
            queries.push(Query { panel: title.to_owned(), expression: without_variables(expression) });
        }
    }
    Ok(queries)
}

fn queries_of_variables(dashboard: &Value) -> Result<Vec<Query>> {
    let variables = dashboard.pointer("/templating/list").and_then(Value::as_array).context("no variables")?;
    let mut queries = Vec::new();
    for variable in variables.iter().filter(|variable| variable.get("type").is_some_and(|kind| kind == "query")) {
        let name = variable.get("name").and_then(Value::as_str).context("a variable without a name")?;
        let text = variable.pointer("/query/query").and_then(Value::as_str);
        let expression = text.and_then(as_expression).with_context(|| format!("variable {name}: {text:?}"))?;
        queries.push(Query { panel: format!("${name}"), expression });
    }
    Ok(queries)
}

/// Returns the expression with a series for each value of a label: Prometheus does not support Grafana's
/// `label_values(METRIC, LABEL)`.
fn as_expression(query: &str) -> Option<String> {
    let (metric, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
    // A label that a series has not is empty, and no value
    Some(format!("count by ({label}) ({metric}{{{label}!=\"\"}})"))
}

fn without_variables(expression: &str) -> String {
    let mut text = expression.replace("$__rate_interval", "1m");
    for variable in ["$node", "$device_class", "$namespace"] {
        text = text.replace(variable, ".*");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn alerts_fire_sooner_and_recording_rules_stay_as_they_are() {
        let rules = json!({"groups": [{"rules": [{"alert": "A", "for": "15m"}, {"record": "r", "expr": "up"}]}]});
        let names = rule_names(&rules);
        assert_eq!((names.alerts, names.records), (vec!["A".to_owned()], vec!["r".to_owned()]));
        let expected = json!({"groups": [{"rules": [{"alert": "A", "for": "1000ms"}, {"record": "r", "expr": "up"}]}]});
        assert_eq!(rules_in_fast_time(rules).unwrap(), expected);
        assert!(milliseconds("15s").is_err() && milliseconds("").is_err());
    }

    #[test]
    fn ranges_of_hours_become_seconds_and_others_stay() {
        let fast = with_short_ranges("predict_linear(a[6h], 86400) > 0 and rate(b{c=\"d\"}[10m]) < increase(e[1h])");
        assert_eq!(
            fast.unwrap(),
            "predict_linear(a[24000ms], 86400) > 0 and rate(b{c=\"d\"}[10m]) < increase(e[20000ms])"
        );
        assert!(with_short_ranges("a[6h").is_err() && with_short_ranges("a[1d12h]").is_err());
        let rules = rules_in_fast_time(read_rules().unwrap()).unwrap().to_string();
        assert!(rules.contains("[24000ms]") && !rules.contains("h]"), "{rules}");
    }

    #[test]
    fn dashboard_variables_become_prometheus_queries() {
        let variables: Vec<_> = queries_of_variables(&json!({"templating": {"list": [
            {"type": "datasource", "name": "datasource", "query": "prometheus"},
            {"type": "query", "name": "node", "query": {"query": "label_values(a_bytes, node)"}},
        ]}}))
        .unwrap();
        let [Query { panel, expression }] = &variables[..] else { panic!("{variables:?}") };
        assert_eq!(panel, "$node");
        assert_eq!(expression, "count by (node) (a_bytes{node!=\"\"})");
        assert_eq!(as_expression("metrics(a)"), None);
    }

    #[test]
    fn dashboard_variables_match_everything() {
        let expression = without_variables("rate(a{node=~\"$node\"}[$__rate_interval])");
        assert_eq!(expression, "rate(a{node=~\".*\"}[1m])");
    }
}
