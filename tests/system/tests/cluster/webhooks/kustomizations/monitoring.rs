//! Checks of Prometheus' targets: monitors select existing pods and Services.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::super::setup::Setup;
use super::Objects;

/// Creates the CustomResourceDefinitions of the Prometheus operator with those of their fields that are in use here.
/// Others are refused, so that typos are found.
pub(super) fn define_kinds(setup: &Setup) -> Result<()> {
    for (kind, spec) in specifications() {
        let plural = format!("{}s", kind.to_lowercase());
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": object(&json!({"spec": spec}))},
                }],
            },
        });
        setup.cluster.apply(&definition.to_string())?;
    }
    setup.cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"]).map(drop)
}

/// Returns the kinds with the schemas of their specifications.
fn specifications() -> [(&'static str, Value); 3] {
    let text = json!({"type": "string"});
    let list = |of: &Value| json!({"type": "array", "items": of});
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let expression = object(&json!({"key": text, "operator": text, "values": list(&text)}));
    let relabeling = object(&json!({"sourceLabels": list(&text), "targetLabel": text}));
    let endpoint = object(&json!({
        "port": text, "targetPort": text, "path": text, "honorLabels": {"type": "boolean"},
        "relabelings": list(&relabeling),
    }));
    let monitor = |endpoints: &str| {
        object(&json!({
            "namespaceSelector": object(&json!({"matchNames": list(&text)})),
            "selector": object(&json!({"matchLabels": texts, "matchExpressions": list(&expression)})),
            endpoints: list(&endpoint),
        }))
    };
    let rule = object(
        &json!({"alert": text, "record": text, "expr": text, "for": text, "labels": texts, "annotations": texts}),
    );
    let groups = object(&json!({"groups": list(&object(&json!({"name": text, "rules": list(&rule)})))}));
    [
        ("PodMonitor", monitor("podMetricsEndpoints")),
        ("ServiceMonitor", monitor("endpoints")),
        ("PrometheusRule", groups),
    ]
}

fn object(fields: &Value) -> Value {
    json!({"type": "object", "properties": fields})
}

impl Objects<'_> {
    /// Checks that each workload with a port for metrics is selected by one monitor, and that a ServiceMonitor selects
    /// the Service of its pods.
    pub(super) fn check_monitors(&self) -> Result<()> {
        if self.of_kind("PodMonitor").next().is_none() {
            return Ok(());
        }
        self.of_kind("PrometheusRule").next().context("no alert rules")?;
        let dashboard = self.of_kind("ConfigMap").find(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1");
        dashboard.context("no dashboard")?;
        for workload in self.workloads() {
            let pod = &workload["spec"]["template"];
            if !pod["spec"]["containers"].to_string().contains(r#""name":"metrics""#) {
                continue;
            }
            let labels = &pod["metadata"]["labels"];
            let by_pod = self.of_kind("PodMonitor").filter(|monitor| selects(monitor, labels)).count();
            let services = self.of_kind("Service").filter(|service| is_part(&service["spec"]["selector"], labels));
            let labels: Vec<_> = services.map(|service| &service["metadata"]["labels"]).collect();
            let selects_one = |monitor: &&Value| labels.iter().any(|labels| selects(monitor, labels));
            let by_service = self.of_kind("ServiceMonitor").filter(selects_one).count();
            ensure!(by_pod + by_service == 1, "{by_pod} and {by_service} monitors select {workload}");
        }
        Ok(())
    }
}

/// Returns true if a monitor selects an object with these labels.
fn selects(monitor: &Value, labels: &Value) -> bool {
    let selector = &monitor["spec"]["selector"];
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    let is_in = |expression: &Value| {
        let label = &labels[expression["key"].as_str().unwrap_or_default()];
        expression["values"].as_array().is_some_and(|values| values.contains(label))
    };
    is_part(&selector["matchLabels"], labels) && expressions.all(is_in)
}

/// Returns true if all members of an object are members of the other one.
fn is_part(some: &Value, all: &Value) -> bool {
    some.as_object().is_some_and(|some| some.iter().all(|(name, value)| all[name] == *value))
}
