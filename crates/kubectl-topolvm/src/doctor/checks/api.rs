//! Checks of the API server and of the definitions of LogicalVolume.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use topolvm_api::{ApiFlavor, crd};

use crate::doctor::Finding;
use crate::doctor::facts::Facts;
use crate::read::RequestError;
use crate::server_version::{self, OLDEST};

pub(super) fn version(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let version = facts.version.as_ref().map_err(Clone::clone)?;
    let (_, _, spelled) = version;
    let finding = if server_version::is_too_old(version) {
        Finding::fail(
            format!("the API server is {spelled}"),
            format!("upgrade Kubernetes to {}.{} or later", OLDEST.0, OLDEST.1),
        )
    } else {
        Finding::ok(format!("the API server is {spelled}"))
    };
    Ok(vec![finding])
}

pub(super) fn definition(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let definitions = facts.definitions.as_ref().map_err(Clone::clone)?;
    let (flavor, expected) = (facts.flavor, crd(facts.flavor));
    let apply = format!("apply {}", manifest(flavor));
    let Some(found) = definitions.iter().find(|found| found.spec.group == flavor.group()) else {
        return Ok(vec![Finding::fail(format!("logicalvolumes.{flavor} is not defined"), apply)]);
    };
    let name = format!("logicalvolumes.{flavor}");
    let mut findings = Vec::new();
    if !has_condition(found, "Established") {
        findings.push(Finding::fail(
            format!("{name} is defined and not served"),
            format!("see the conditions in kubectl describe crd {name}"),
        ));
    }
    let ours = expected.spec.versions.first();
    let served = |version: &&CustomResourceDefinitionVersion| {
        version.served && ours.is_some_and(|ours| ours.name == version.name)
    };
    let Some(version) = found.spec.versions.iter().find(served) else {
        findings.push(Finding::fail(format!("{name} has no served version v1"), apply));
        return Ok(findings);
    };
    if version.subresources.as_ref().and_then(|all| all.status.as_ref()).is_none() {
        let found = format!("{name} has no subresource status, to which the agents write");
        findings.push(Finding::fail(found, apply.clone()));
    }
    let mut missing = Vec::new();
    if let Some(ours) = ours {
        for part in ["spec", "status"] {
            let there = fields(version, part);
            missing.extend(fields(ours, part).into_iter().filter(|field| !there.contains(field)));
        }
        let selectable = |version: &CustomResourceDefinitionVersion| -> Vec<String> {
            version.selectable_fields.iter().flatten().map(|field| format!("selectable {}", field.json_path)).collect()
        };
        let there = selectable(version);
        missing.extend(selectable(ours).into_iter().filter(|field| !there.contains(field)));
    }
    if !missing.is_empty() {
        let found = format!("the definition of {name} is another, perhaps TopoLVM's: it lacks {}", missing.join(", "));
        findings.push(Finding::warn(found, apply));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(format!("{name} v1 is served as we define it")));
    }
    Ok(findings)
}

pub(super) fn groups(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let definitions = facts.definitions.as_ref().map_err(Clone::clone)?;
    let groups: Vec<_> = definitions.iter().map(|found| found.spec.group.as_str()).collect();
    let finding = match groups.as_slice() {
        [] => Finding::fail("neither API group is installed", format!("apply {}", manifest(facts.flavor))),
        [group] => Finding::ok(format!("only {group} is installed")),
        _ => {
            let other = [ApiFlavor::TopoLvm, ApiFlavor::Legacy].into_iter().find(|other| *other != facts.flavor);
            let other = other.map_or_else(String::new, |other| format!("logicalvolumes.{other}"));
            Finding::warn(
                format!("both API groups are installed ({}); programs speak one of them", groups.join(" and ")),
                format!(
                    "if kubectl get {other} shows none, kubectl delete crd {other}; if it shows some, see \
                        docs/switching.md, and do not \
                     delete it: that deletes the volumes"
                ),
            )
        }
    };
    Ok(vec![finding])
}

/// Returns the manifest with the CustomResourceDefinition.
const fn manifest(flavor: ApiFlavor) -> &'static str {
    match flavor {
        ApiFlavor::TopoLvm => "deploy/manifests/base/crd.yaml",
        ApiFlavor::Legacy => "deploy/manifests/components/legacy/crd.yaml",
    }
}

fn has_condition(definition: &CustomResourceDefinition, type_: &str) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Names of the fields of `spec` or `status`.
fn fields(version: &CustomResourceDefinitionVersion, part: &str) -> Vec<String> {
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let property = |schema: &JSONSchemaProps, name: &str| schema.properties.as_ref()?.get(name).cloned();
    let part_schema = schema.and_then(|schema| property(schema, part));
    let names = part_schema.and_then(|schema| schema.properties).unwrap_or_default();
    names.into_keys().map(|name| format!("{part}.{name}")).collect()
}
