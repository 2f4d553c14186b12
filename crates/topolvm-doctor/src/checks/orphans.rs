//! Checks of LVs whose LogicalVolumes do not exist, with commands that restore or delete each.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube_core::ResourceExt as _;
use topolvm_api::{FILESYSTEMS, LogicalVolume, NodeOrphans, OrphanedVolume, same_lv};

use crate::csi_persistent_volume::CsiPersistentVolume;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::shell::quote;

/// Returns the findings about the LVs of a node.
pub(super) fn find(facts: &Facts, node: &Node) -> Vec<Finding> {
    let annotation = node.annotations().get(facts.flavor.orphans()).map(String::as_str);
    let name = node.name_any();
    let orphans = match NodeOrphans::parse(annotation) {
        Ok(orphans) => orphans,
        Err(error) => {
            let found = format!("node {name}: cannot read its list of LVs without a LogicalVolume: {error}");
            return vec![Finding::warn(found, "use a version of this program that is not older than topolvm-node")];
        }
    };
    // The annotation is up to a minute older than the objects
    let without = orphans.volumes.iter().filter(|orphan| !has_object(facts, &name, &orphan.lv));
    let mut findings: Vec<_> = without.map(|orphan| describe(facts, &name, orphan)).collect();
    if orphans.more > 0 {
        let found = format!("node {name}: {} more LVs have no LogicalVolume", orphans.more);
        findings.push(Finding::warn(found, "lvs -o +tags on the node lists them"));
    }
    findings
}

fn has_object(facts: &Facts, node: &str, lv: &str) -> bool {
    let adopted = facts.flavor.adopted();
    facts.volumes.iter().flatten().any(|volume: &std::sync::Arc<LogicalVolume>| {
        let adopter = volume.annotation(adopted).filter(|_| volume.spec.node_name == node);
        [Some(volume.uid()), volume.volume_id(), adopter].into_iter().flatten().any(|name| same_lv(name, lv))
    })
}

fn describe(facts: &Facts, node: &str, orphan: &OrphanedVolume) -> Finding {
    let (lv, object) = (&orphan.lv, &orphan.logical_volume);
    if let Some((reference, name)) = find_reference(facts, orphan) {
        let found = format!("node {node}: LV {lv} has no LogicalVolume, and {reference} refers to it");
        let remedy = "recreate the LogicalVolume; the data still exists, and pods can use it again";
        return Finding::fail(found, remedy).with_commands([format!("kubectl topolvm undelete {}", quote(&name))]);
    }
    let found = format!("node {node}: LV {lv} has no LogicalVolume (it was created for {object}): {}", orphan.note);
    let mut remedy =
        "it may contain data: restore it, or delete it if its data is not needed (docs/orphans.md)".to_owned();
    let flags = restore_flags(facts, orphan);
    if !flags.iter().any(|flag| flag.contains("--claim")) {
        remedy += "; restore with -n NAMESPACE --claim NAME also creates a PersistentVolume and a claim";
    }
    let (node, lv) = (quote(node), quote(lv));
    Finding::warn(found, remedy).with_commands([
        [vec![format!("kubectl topolvm orphans restore {node} {lv}")], flags].concat().join(" "),
        format!("kubectl topolvm orphans delete {node} {lv} --yes"),
    ])
}

/// Finds what refers to the volume of an LV, and returns its kind and name, and the name of the LogicalVolume.
fn find_reference(facts: &Facts, orphan: &OrphanedVolume) -> Option<(String, String)> {
    let made_for = Some(orphan.logical_volume.clone()).filter(|name| !name.is_empty());
    let persistent = facts.persistent.iter().flatten().find(|one| same_lv(&one.volume_handle, &orphan.lv));
    if let Some(one) = persistent {
        return Some((format!("PersistentVolume {}", one.name), made_for.unwrap_or_else(|| one.name.to_string())));
    }
    let driver = facts.flavor.driver_name();
    let mut contents = facts.snapshot_contents.iter().flatten();
    let content = contents.find(|content| content.refers_to_lv(driver, &orphan.lv))?;
    Some((format!("VolumeSnapshotContent {}", content.name_any()), made_for?))
}

/// Returns the flags of `orphans restore` that follow from what is left of the volume: its PersistentVolume and claim.
fn restore_flags(facts: &Facts, orphan: &OrphanedVolume) -> Vec<String> {
    let is_of_orphan = |one: &&CsiPersistentVolume| *one.name == orphan.logical_volume;
    let old = facts.persistent.iter().flatten().find(is_of_orphan);
    let claim = claim_of(facts, orphan, old).map(|(namespace, claim)| {
        let is_it =
            |one: &PersistentVolumeClaim| one.namespace().as_ref() == Some(&namespace) && one.name_any() == claim;
        let exists = facts.claims.iter().flatten().any(is_it);
        let claim = if exists { format!("{claim}-restored") } else { claim.clone() };
        format!("-n {} --claim {}", quote(&namespace), quote(&claim))
    });
    let Some(old) = old else {
        return claim.into_iter().collect();
    };
    // Its name and its handle are those of the volume that is gone, and cannot be changed
    let name = format!("--name {}", quote(&format!("{}-restored", old.name)));
    let class = Some(&*old.storage_class).filter(|class| !class.is_empty());
    let class = class.map(|class| format!("--storage-class {}", quote(class)));
    let content = if old.is_block {
        Some("--block".to_owned())
    } else {
        // The first is the default of the flag
        old.filesystem.filter(|known| FILESYSTEMS.first() != Some(known)).map(|known| format!("--filesystem {known}"))
    };
    claim.into_iter().chain([name]).chain(class).chain(content).collect()
}

/// Returns namespace and name of the claim that had the volume.
fn claim_of(facts: &Facts, orphan: &OrphanedVolume, old: Option<&CsiPersistentVolume>) -> Option<(String, String)> {
    if let Some((namespace, name)) = old.and_then(CsiPersistentVolume::claim) {
        return Some((namespace.to_owned(), name.to_owned()));
    }
    let names =
        |volume: Option<&str>| volume.is_some_and(|volume| !volume.is_empty() && volume == orphan.logical_volume);
    let mut claims = facts.claims.iter().flatten();
    let claim = claims.find(|claim| names(claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref())))?;
    Some((claim.namespace()?, claim.name_any()))
}
