//! Checks of the API server and of the definitions of LogicalVolume.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use topolvm_api::{ApiFlavor, crd};

use crate::facts::Facts;
use crate::finding::Finding;
use crate::manifests;
use crate::read_error::{ReadError, read};
use crate::server_version::{self, OLDEST};

pub(super) fn version(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let version = facts.version.as_ref().map_err(Clone::clone)?;
    let (_, _, spelled) = version;
    let finding = if server_version::is_too_old(version) {
        Finding::fail(
            format!("the API server has version {spelled}"),
            format!("upgrade Kubernetes to {}.{} or later", OLDEST.0, OLDEST.1),
        )
    } else {
        Finding::ok(format!("the API server has version {spelled}"))
    };
    Ok(vec![finding])
}

pub(super) fn definition(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let definitions = read(&facts.definitions)?;
    let name = format!("logicalvolumes.{}", facts.flavor);
    let apply = format!("apply {}", manifests::definitions(facts.flavor));
    let Some(found) = definitions.iter().find(|found| found.spec.group == facts.flavor.group()) else {
        return Ok(vec![Finding::fail(format!("{name} is not defined"), apply)]);
    };
    let mut findings = Vec::new();
    if !is_established(found) {
        findings.push(Finding::fail(
            format!("{name} is defined but not served"),
            format!("see the conditions in kubectl describe crd {name}"),
        ));
    }
    let mut ours = crd(facts.flavor).spec.versions;
    if !facts.version.as_ref().is_ok_and(server_version::has_selectable_fields) {
        // The API server drops them from every applied definition
        for version in &mut ours {
            version.selectable_fields = None;
        }
    }
    let served = |ours: &CustomResourceDefinitionVersion| {
        found.spec.versions.iter().find(|version| version.served && version.name == ours.name)
    };
    match ours.iter().find_map(|ours| Some((ours, served(ours)?))) {
        Some((ours, version)) => findings.extend(find_version_problems(&name, ours, version, &apply)),
        None => findings.push(Finding::fail(format!("{name} does not serve version v1"), apply)),
    }
    Ok(Finding::ok_if_none(findings, format!("{name} v1 is served and complete")))
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Returns what a served version lacks of our own.
fn find_version_problems(
    name: &str,
    ours: &CustomResourceDefinitionVersion,
    version: &CustomResourceDefinitionVersion,
    apply: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if version.subresources.as_ref().and_then(|all| all.status.as_ref()).is_none() {
        findings.push(Finding::fail(format!("{name} has no status subresource, which the agents need"), apply));
    }
    let existing = fields(version);
    let missing: Vec<_> = fields(ours).into_iter().filter(|field| !existing.contains(field)).collect();
    if !missing.is_empty() {
        let found = format!("{name} has an unexpected definition, perhaps TopoLVM's: it lacks {}", missing.join(", "));
        findings.push(Finding::warn(found, apply));
    }
    findings
}

pub(super) fn groups(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let definitions = read(&facts.definitions)?;
    let groups: Vec<_> = definitions.iter().map(|found| found.spec.group.as_str()).collect();
    let finding = match groups.as_slice() {
        [] => {
            Finding::fail("neither API group is installed", format!("apply {}", manifests::definitions(facts.flavor)))
        }
        [group] => Finding::ok(format!("only {group} is installed")),
        _ => {
            let other = [ApiFlavor::TopoLvm, ApiFlavor::Legacy].into_iter().find(|other| *other != facts.flavor);
            let other = other.map_or_else(String::new, |other| format!("logicalvolumes.{other}"));
            Finding::warn(
                format!("both API groups are installed ({}); a process uses only one", groups.join(" and ")),
                format!(
                    "if kubectl get {other} shows no objects, run kubectl delete crd {other}; otherwise see \
                        docs/switching.md, and do not delete the CRD: that deletes the volumes"
                ),
            )
        }
    };
    Ok(vec![finding])
}

/// Returns the names of the fields of `spec` and `status`, and those of selectable fields.
fn fields(version: &CustomResourceDefinitionVersion) -> Vec<String> {
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let part = |name: &'static str| Some((name, schema?.properties.as_ref()?.get(name)?.properties.as_ref()?));
    let parts = ["spec", "status"].into_iter().filter_map(part);
    let fields = parts.flat_map(|(part, fields)| fields.keys().map(move |name| format!("{part}.{name}")));
    let selectable = version.selectable_fields.iter().flatten();
    fields.chain(selectable.map(|field| format!("selectable field {}", field.json_path))).collect()
}
