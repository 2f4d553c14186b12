//! Names that differ in each run, because they depend on UIDs in another way than by containing them: those of the
//! snapshots of groups.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::parity::kinds::Kind;
use crate::parity::observed::State;

/// Returns the names of the VolumeSnapshots in a namespace that belong to a group, by their claims.
pub(in crate::parity) fn members(state: &State, namespace: &str) -> BTreeMap<String, String> {
    let snapshots = state.objects.iter().filter(|(key, _)| key.kind == Kind::Snapshot && key.namespace == namespace);
    let members = snapshots.filter(|(_, snapshot)| {
        snapshot.pointer("/metadata/ownerReferences/0/kind").is_some_and(|kind| kind == "VolumeGroupSnapshot")
    });
    let claim =
        |snapshot: &Value| snapshot.pointer("/spec/source/persistentVolumeClaimName")?.as_str().map(str::to_owned);
    members.filter_map(|(key, snapshot)| Some((claim(snapshot)?, key.name.clone()))).collect()
}

/// Replaces what differs: the hash in the names of VolumeSnapshots and their contents, and the number of a
/// LogicalVolume, which follows the order of the volumes' ids. Sorts the lists that are in this order.
pub(super) fn stable(value: Value, state: &State, namespace: &str) -> Value {
    let mut text = value.to_string();
    for (hash, claim) in hashes(state, namespace) {
        text = text.replace(&hash, &format!("<of {claim}>"));
    }
    for (from, to) in volumes(state, namespace) {
        text = text.replace(&from, &to);
    }
    let mut value = serde_json::from_str(&text).unwrap_or(value);
    let Some(objects) = value.as_object_mut() else { return value };
    for object in objects.values_mut() {
        for list in ["/status/volumeSnapshotInfoList", "/spec/source/groupSnapshotHandles/volumeSnapshotHandles"] {
            if let Some(list) = object.pointer_mut(list).and_then(Value::as_array_mut) {
                list.sort_by_key(ToString::to_string);
            }
        }
    }
    value
}

/// Returns the hashes in the names of VolumeSnapshots of groups and of their contents, with their claims. A content may
/// exist longer than its VolumeSnapshot.
fn hashes(state: &State, namespace: &str) -> Vec<(String, String)> {
    let of_members = members(state, namespace).into_iter().filter_map(|(claim, name)| {
        let hash = name.strip_prefix("snapshot-")?;
        Some((hash.to_owned(), claim))
    });
    let claims = state.claim_uids(namespace);
    let contents = state.objects.iter().filter(|(key, _)| key.kind == Kind::SnapshotContent);
    let of_contents = contents.filter_map(|(key, content)| {
        content.pointer("/metadata/annotations/groupsnapshot.storage.k8s.io~1volumeGroupSnapshotHandle")?;
        let volume = state.uids.get(content.pointer("/spec/source/volumeHandle")?.as_str()?)?;
        let claim = state.uids.get(*claims.iter().find(|uid| volume.name.contains(**uid))?)?;
        Some((key.name.strip_prefix("snapcontent-")?.to_owned(), claim.name.clone()))
    });
    of_members.chain(of_contents).collect()
}

/// Returns the names of the LogicalVolumes of groups as they are after UIDs were replaced, with the claim of the
/// source instead of the number.
fn volumes(state: &State, namespace: &str) -> Vec<(String, String)> {
    let groups = state.uids_in(Kind::GroupSnapshot, namespace);
    let claims = state.claim_uids(namespace);
    let name = |uid: &str| state.uids.get(uid).map(|key| key.name.as_str());
    let volumes = state.objects.iter().filter(|(key, _)| key.kind == Kind::LogicalVolume);
    let pairs = volumes.filter_map(|(key, volume)| {
        let group = name(groups.iter().find(|uid| key.name.contains(**uid))?)?;
        let (_, number) = key.name.rsplit_once('-')?;
        let source = volume.pointer("/spec/source")?.as_str()?;
        let claim = name(claims.iter().find(|uid| source.contains(**uid))?)?;
        let prefix = format!("groupsnapshot-<GroupSnapshot {group}>");
        Some((format!("{prefix}-{number}"), format!("{prefix}-of-{claim}")))
    });
    pairs.collect()
}
