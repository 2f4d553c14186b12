//! The files made of the alert rules and of the dashboard in `deploy/monitoring`: the PrometheusRule, and the copies in
//! the chart and in the kustomization, neither of which reads files outside of its directory.

use anyhow::Context as _;

use super::{ALERT_RULES, HEADER};
use crate::tools::repository;

const DASHBOARD: &str = "deploy/monitoring/topolvm-dashboard.json";

const OBJECT: &str = "apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: topolvm
  namespace: topolvm-system
  labels:
    app.kubernetes.io/name: topolvm
spec:
";

/// Returns the files that are made of the rules and of the dashboard.
pub(super) fn files() -> anyhow::Result<Vec<(&'static str, String)>> {
    let (rules, dashboard) = (read(ALERT_RULES)?, read(DASHBOARD)?);
    Ok(vec![
        ("deploy/manifests/components/monitoring/rules.yaml", rule_object(&rules)?),
        ("deploy/manifests/components/monitoring/topolvm-dashboard.json", dashboard.clone()),
        ("charts/topolvm/files/topolvm-rules.yaml", format!("{HEADER}{rules}")),
        ("charts/topolvm/files/topolvm-dashboard.json", dashboard),
    ])
}

/// Returns the PrometheusRule with the groups of a rule file, whose comments at its top stay there.
fn rule_object(rules: &str) -> anyhow::Result<String> {
    let (_, groups) = rules.split_once("\ngroups:\n").with_context(|| format!("{ALERT_RULES} has no groups"))?;
    let indented = groups.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
    Ok(format!("{HEADER}{OBJECT}  groups:\n{}", indented.collect::<String>()))
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(repository().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_object_spec_has_the_groups_of_the_rule_file() {
        let object = rule_object("# Comment\ngroups:\n- name: a\n\n  rules: []\n").unwrap();
        assert_eq!(object, format!("{HEADER}{OBJECT}  groups:\n  - name: a\n\n    rules: []\n"));
    }
}
