//! Checks of what an installation of the other API group has left.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt as _;
use serde_json::json;
use topolvm_api::ApiFlavor;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::read_error::{ReadError, read};
use crate::shell::{self, quote};

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let other = match facts.flavor {
        ApiFlavor::TopoLvm => ApiFlavor::Legacy,
        ApiFlavor::Legacy => ApiFlavor::TopoLvm,
    };
    let is_defined = read(&facts.definitions)?.iter().any(|found| found.spec.group == other.group());
    let has_driver = read(&facts.drivers)?.iter().any(|driver| driver.name_any() == other.driver_name());
    if is_defined || has_driver {
        return Ok(vec![Finding::ok(format!("{other} is installed too"))]);
    }
    let mut findings = Vec::new();
    for node in read(&facts.nodes)? {
        findings.extend(find_finalizer("node", &node.metadata, other.node_finalizer()));
        let keys = node.annotations().keys().filter(|key| other.is_capacity_annotation(key));
        let removals: Vec<_> = keys.map(|key| quote(&format!("{key}-"))).collect();
        if !removals.is_empty() {
            let name = node.name_any();
            let found = format!("node {name} has annotations of {other}, which is not installed");
            findings.push(Finding::warn(found, "remove them").with_commands([format!(
                "kubectl annotate node {} {}",
                quote(&name),
                removals.join(" ")
            )]));
        }
    }
    for configuration in read(&facts.webhooks)? {
        let name = configuration.name_any();
        let hooks: Vec<_> = configuration.webhooks.iter().flatten().map(|webhook| webhook.name.as_str()).collect();
        if !hooks.is_empty() && hooks.iter().all(|hook| hook.ends_with(&format!("-hook.{other}"))) {
            let hooks = hooks.join(" and ");
            let found = format!("the MutatingWebhookConfiguration {name} has {hooks}, but {other} is not installed");
            let remedy = "delete it: no controller serves it, and the API server may reject all pods and claims";
            let command = format!("kubectl delete mutatingwebhookconfiguration {}", quote(&name));
            findings.push(Finding::fail(found, remedy).with_commands([command]));
        }
    }
    for claim in read(&facts.claims)? {
        findings.extend(find_finalizer("pvc", &claim.metadata, other.pvc_finalizer()));
    }
    Ok(Finding::ok_if_none(findings, format!("no objects of {other} remain")))
}

/// Returns the finding about a finalizer of a program that does not run.
fn find_finalizer(kind: &str, metadata: &ObjectMeta, finalizer: &str) -> Option<Finding> {
    let index = metadata.finalizers.iter().flatten().position(|found| found == finalizer)?;
    let (name, namespace) = (metadata.name.as_deref().unwrap_or_default(), metadata.namespace.as_deref());
    let path = format!("/metadata/finalizers/{index}");
    let patch = json!([{"op": "test", "path": path, "value": finalizer}, {"op": "remove", "path": path}]);
    let of = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
    let found = format!("{kind} {of}{name} has the finalizer {finalizer}, which no running program removes");
    let remedy = "remove it; otherwise the object is never deleted";
    Some(Finding::warn(found, remedy).with_commands([shell::patch(namespace, kind, name, &patch)]))
}
