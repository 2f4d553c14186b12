//! Checks of LogicalVolumes, PersistentVolumes and nodes that belong together.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use kube_core::ResourceExt;
use topolvm_api::{LogicalVolume, SnapshotContent, lost_message};

use super::orphans;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::read_error::{ReadError, read};
use crate::shell::quote;

/// Time in which csi-provisioner creates the PersistentVolume of a volume, csi-snapshotter updates the content of a
/// snapshot, and the agent removes a volume.
const ON_THE_WAY: SignedDuration = SignedDuration::from_mins(10);

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let volumes = read(&facts.volumes)?;
    let persistent = read(&facts.persistent)?;
    let nodes: BTreeSet<_> = read(&facts.nodes)?.iter().map(ResourceExt::name_any).collect();
    let handles: BTreeSet<_> = persistent.iter().map(|one| &*one.volume_handle).collect();
    let names: BTreeSet<_> = persistent.iter().map(|one| &*one.name).collect();
    let is_bound = |volume: &LogicalVolume| {
        volume.volume_id().is_some_and(|id| handles.contains(id)) || names.contains(volume.name())
    };
    let mut findings = Vec::new();
    let contents = SnapshotContents::of(facts)?;
    for volume in volumes {
        let is_owned = if volume.is_snapshot() { contents.refer_to(volume) } else { is_bound(volume) };
        findings.extend(find_volume_problem(facts, volume, &nodes, is_owned));
    }
    let names_of_volumes: BTreeSet<_> = volumes.iter().map(|volume| volume.name()).collect();
    let ids: BTreeSet<_> = volumes.iter().filter_map(|volume| volume.volume_id()).collect();
    for one in persistent {
        let is_made = ids.contains(&*one.volume_handle) || names_of_volumes.contains(&*one.name);
        // One that is on its way out loses its volume first
        if !is_made && one.is_in_use {
            let found = format!("PersistentVolume {} has no LogicalVolume", one.name);
            let remedy = "kubectl topolvm undelete --all recreates it if a node has its LV; otherwise delete the claim \
                and the PersistentVolume, and restore a backup of the data";
            findings.push(Finding::fail(found, remedy));
        }
    }
    for node in read(&facts.nodes)? {
        findings.extend(orphans::find(facts, node));
    }
    Ok(Finding::ok_if_none(findings, format!("all {} LogicalVolumes are referenced", volumes.len())))
}

/// VolumeSnapshotContents of our driver: CSI ids of their snapshots, and their names.
struct SnapshotContents<'a> {
    handles: BTreeSet<&'a str>,
    names: BTreeSet<String>,
}

impl<'a> SnapshotContents<'a> {
    fn of(facts: &'a Facts) -> Result<Self, ReadError> {
        let ours = |content: &&SnapshotContent| content.spec.driver == facts.flavor.driver_name();
        let contents = || read(&facts.snapshot_contents).map(|all| all.iter().filter(ours));
        let handles = |content: &'a SnapshotContent| {
            [&content.spec.source.snapshot_handle, &content.status.snapshot_handle].into_iter().flatten()
        };
        Ok(Self {
            handles: contents()?.flat_map(handles).map(String::as_str).collect(),
            names: contents()?.filter_map(|content| content.metadata.name.clone()).collect(),
        })
    }

    /// Returns whether one of them has the snapshot, or waits for it: csi-snapshotter has the id of a snapshot later
    /// than the snapshot is made, and calls it `snapshot-UID` for the content `snapcontent-UID`.
    fn refer_to(&self, volume: &LogicalVolume) -> bool {
        volume.volume_id().is_some_and(|id| self.handles.contains(id))
            || volume
                .name()
                .strip_prefix("snapshot-")
                .is_some_and(|uid| self.names.contains(&format!("snapcontent-{uid}")))
    }
}

fn find_volume_problem(
    facts: &Facts,
    volume: &LogicalVolume,
    nodes: &BTreeSet<String>,
    is_owned: bool,
) -> Option<Finding> {
    let (name, node) = (volume.name(), &volume.spec.node_name);
    let resource = format!("logicalvolumes.{}", facts.flavor);
    if !nodes.contains(node) {
        let found = format!("LogicalVolume {name} is on node {node}, which does not exist");
        let remedy = format!(
            "if the node does not return, delete the claim, or run kubectl delete {resource} {name} if it has no \
                claim; the controller removes the finalizer (--stale-period; docs/node-maintenance.md)"
        );
        return Some(Finding::warn(found, remedy));
    }
    if let Some(message) = volume.removal_blocked().filter(|_| volume.is_deleting()) {
        let found = format!("LogicalVolume {name} of node {node} is being deleted, but its data is still needed");
        let undelete = format!("kubectl topolvm undelete {}", quote(name));
        return Some(Finding::fail(found, message).with_commands([undelete]));
    }
    if volume.is_deleting() {
        return facts.is_older(volume.metadata.deletion_timestamp.as_ref(), ON_THE_WAY).then(|| {
            if let Some(why) = volume.removal_failure() {
                let found =
                    format!("LogicalVolume {name} is deleted, but its LV on node {node} cannot be removed: {why}");
                let remedy =
                    "release the LV from the holder that the message names; topolvm-node retries every 30 seconds";
                return Finding::fail(found, remedy);
            }
            let finalizers = volume.metadata.finalizers.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
            let found = format!("LogicalVolume {name} is deleted, but still has the finalizers {finalizers}");
            let remedy = format!(
                "kubectl describe {resource} {name} shows why; topolvm-node on node {node} removes its finalizer when \
                    the LV is unused and removed"
            );
            Finding::fail(found, remedy)
        });
    }
    if volume.is_lost() {
        let found = format!("the LV of LogicalVolume {name} does not exist");
        return Some(Finding::fail(found, lost_message(volume)));
    }
    let is_orphan = !is_owned && facts.is_older(volume.metadata.creation_timestamp.as_ref(), ON_THE_WAY);
    is_orphan.then(|| {
        let owner = if volume.is_snapshot() { "VolumeSnapshotContent" } else { "PersistentVolume" };
        let found = format!("no {owner} refers to LogicalVolume {name} on node {node}");
        let delete = format!("if its data is not needed, delete it: kubectl delete {resource} {name}");
        let restored = volume.annotation(facts.flavor.adopted()).map(|lv| {
            let (node, lv) = (quote(node), quote(lv));
            format!(
                "create a PersistentVolume and a claim: kubectl topolvm orphans restore {node} {lv} -n NAMESPACE \
                    --claim NAME; {delete}"
            )
        });
        Finding::warn(found, restored.unwrap_or(delete))
    })
}
