//! allowedTopologies of StorageClasses.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, BETA, Scenario, allowed, on};

const OWN: &str = "topology.topolvm.io/node";
const HOSTNAME: &str = "kubernetes.io/hostname";

pub(super) fn scenarios() -> Vec<Scenario> {
    let selected = |name, patch: Value| Scenario::with_class(name, patch).claim("a", [on(ALPHA)]);
    let immediate = |name, patch: Value| {
        Scenario::with_class(name, merge(patch, json!({"volumeBindingMode": "Immediate"}))).claim("a", [])
    };
    let term = |key: &str, value: &str| json!({"matchLabelExpressions": [{"key": key, "values": [value]}]});
    let both = json!({"allowedTopologies": [{"matchLabelExpressions": [
        {"key": OWN, "values": [ALPHA]}, {"key": HOSTNAME, "values": [ALPHA]},
    ]}]});
    vec![
        selected("topology-own-label", allowed(OWN, &[ALPHA])).bound("a"),
        selected("topology-own-label-of-two", allowed(OWN, &[BETA, ALPHA])).bound("a"),
        selected("topology-own-label-of-other-node", allowed(OWN, &[BETA])).decided("a"),
        selected("topology-two-terms", json!({"allowedTopologies": [term(OWN, BETA), term(OWN, ALPHA)]})).bound("a"),
        selected("topology-hostname", allowed(HOSTNAME, &[ALPHA])).decided("a"),
        selected("topology-hostname-of-other-node", allowed(HOSTNAME, &[BETA])).decided("a"),
        selected("topology-foreign-label", allowed("kubernetes.io/os", &["linux"])).decided("a"),
        selected("topology-unknown-label", allowed("example.com/rack", &["1"])).decided("a"),
        selected("topology-own-and-foreign-label", both.clone()).decided("a"),
        selected(
            "topology-foreign-or-own-label",
            json!({"allowedTopologies": [term(HOSTNAME, ALPHA), term(OWN, ALPHA)]}),
        )
        .decided("a"),
        immediate("topology-immediate-own-label", allowed(OWN, &[BETA])).bound("a"),
        immediate("topology-immediate-missing-node", allowed(OWN, &["missing"])).failed("a", ""),
        immediate("topology-immediate-hostname", allowed(HOSTNAME, &[BETA])).decided("a"),
        immediate("topology-immediate-foreign-label", allowed("kubernetes.io/os", &["linux"]))
            .on_any_node()
            .decided("a"),
        immediate("topology-immediate-own-and-foreign-label", both).decided("a"),
        Scenario::with_class("topology-label-changes", allowed("example.com/zone", &["1"]))
            .patch(Kind::Node, BETA, json!({"metadata": {"labels": {"example.com/zone": "1"}}}))
            .claim("a", [on(BETA)])
            .decided("a"),
    ]
}
