//! Checks of claims that are to be restored from a snapshot or cloned.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ResourceExt as _;
use topolvm_api::parse_bytes;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::{class_of, device_class, full_name, is_unbound, source_of};
use crate::read_error::{ReadError, read};
use crate::snapshots::Snapshot;

/// Source of a copy.
struct Source<'a> {
    /// `VolumeSnapshot shop/before`.
    name: String,
    /// The least size of the copy.
    size: Option<&'a Quantity>,
    /// The claim of which it is a copy in the end.
    claim: Option<&'a PersistentVolumeClaim>,
}

fn find_claim<'a>(facts: &'a Facts, namespace: &str, name: &str) -> Option<&'a PersistentVolumeClaim> {
    let is_it =
        |claim: &&PersistentVolumeClaim| claim.namespace().as_deref() == Some(namespace) && claim.name_any() == name;
    facts.claims.iter().flatten().find(is_it)
}

/// Returns the size that a claim requests.
fn requested(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")
}

/// Returns the source of a claim; none if it does not exist.
fn find_source<'a>(facts: &'a Facts, kind: &str, namespace: &str, name: &str) -> Option<Source<'a>> {
    if kind == "PersistentVolumeClaim" {
        let claim = find_claim(facts, namespace, name)?;
        let name = format!("claim {namespace}/{name}");
        return Some(Source { name, size: requested(claim), claim: Some(claim) });
    }
    let is_it = |snapshot: &&Snapshot| {
        snapshot.metadata.namespace.as_deref() == Some(namespace) && snapshot.metadata.name.as_deref() == Some(name)
    };
    let snapshot = facts.snapshots.iter().flatten().find(is_it)?;
    let origin = snapshot.spec.source.persistent_volume_claim_name.as_deref();
    Some(Source {
        name: format!("VolumeSnapshot {namespace}/{name}"),
        size: snapshot.status.restore_size.as_ref(),
        claim: origin.and_then(|origin| find_claim(facts, namespace, origin)),
    })
}

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let classes = facts.our_classes()?;
    let snapshots = read(&facts.snapshots);
    let mut findings = Vec::new();
    for claim in read(&facts.claims)?.iter().filter(|claim| is_unbound(claim)) {
        let Some(class) = class_of(claim, &classes) else { continue };
        let Some((kind, namespace, name)) = source_of(claim) else { continue };
        if kind == "VolumeSnapshot" {
            let _all = snapshots.as_ref().map_err(Clone::clone)?;
        } else if kind != "PersistentVolumeClaim" {
            // Whatever makes the volume then is not known here
            continue;
        }
        match find_source(facts, kind, &namespace, name) {
            None => findings.push(Finding::fail(
                format!("claim {} waits for the {kind} {namespace}/{name}, which does not exist", full_name(claim)),
                "create the source, or delete the claim",
            )),
            Some(source) => findings.extend(find_mismatch(facts, claim, class, &source, &classes)),
        }
    }
    Ok(Finding::ok_if_none(findings, "no claim waits for an impossible copy"))
}

/// Returns the reason for which the controller refuses the copy.
fn find_mismatch(
    facts: &Facts,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    source: &Source<'_>,
    classes: &[&StorageClass],
) -> Option<Finding> {
    let name = full_name(claim);
    if let (Some(wanted), Some(size)) = (requested(claim), source.size)
        && let (Ok(wanted_bytes), Ok(bytes)) = (parse_bytes(wanted), parse_bytes(size))
        && wanted_bytes < bytes
    {
        let found = format!("claim {name} requests {}, but {} has {}", wanted.0, source.name, size.0);
        return Some(Finding::fail(found, format!("recreate the claim with at least {}", size.0)));
    }
    let Some(original) = source.claim.and_then(|original| class_of(original, classes)) else {
        let foreign = source.claim.and_then(|original| original.spec.as_ref()?.storage_class_name.as_ref())?;
        let found = format!(
            "claim {name} requests a copy of {}, whose StorageClass {foreign} belongs to another driver",
            source.name
        );
        return Some(Finding::fail(found, "copy the data with a pod that mounts both volumes"));
    };
    let (from, to) = (device_class(facts.flavor, original), device_class(facts.flavor, class));
    (from != to).then(|| {
        let found = format!(
            "claim {name} of StorageClass {} is in the device class {to:?}, but {} is in {from:?}",
            class.name_any(),
            source.name
        );
        let remedy = format!("recreate the claim with the StorageClass {}", original.name_any());
        Finding::fail(found, remedy)
    })
}
