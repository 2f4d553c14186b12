//! The outcome of a scenario that compares snapshots: its VolumeSnapshots and VolumeGroupSnapshots, their contents and
//! LogicalVolumes, and the Events about contents.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{VOLATILE, group_names, remove, sort_lists};
use crate::parity::kinds::Kind;
use crate::parity::observed::State;
use crate::parity::scenario::Scenario;
use crate::parity::snapshotter::is_snapshotter;

/// Members that are present with both programs and have other values in each run: times, and messages, of which the
/// scenario requires a part.
const PRESENT: [&str; 4] =
    ["/metadata/deletionTimestamp", "/status/creationTime", "/status/error/message", "/status/error/time"];

/// Returns the objects.
pub(super) fn objects(state: &State, scenario: &Scenario) -> Value {
    let uids = uids(state, scenario);
    let is_for = |object: &Value, pointer: &str| object.pointer(pointer) == Some(&json!(scenario.name));
    let mut objects = Map::new();
    for (key, object) in &state.objects {
        let is_ours = match key.kind {
            Kind::Snapshot | Kind::GroupSnapshot => key.namespace == scenario.name,
            Kind::SnapshotContent => is_for(object, "/spec/volumeSnapshotRef/namespace"),
            Kind::GroupSnapshotContent => is_for(object, "/spec/volumeGroupSnapshotRef/namespace"),
            // One whose creation failed is deleted and created again at some moment
            Kind::LogicalVolume => {
                uids.iter().any(|uid| key.name.contains(uid))
                    && object.pointer("/status/volumeID").is_some()
                    && object.pointer("/metadata/deletionTimestamp").is_none()
            }
            _ => false,
        };
        if is_ours {
            objects.insert(format!("{:?} {}", key.kind, key.name), normalized(object));
        }
    }
    stable(Value::Object(objects), state, scenario)
}

/// Returns the Events, without their number: it depends on time.
pub(super) fn events(state: &State, scenario: &Scenario) -> Value {
    let uids = uids(state, scenario);
    let mut events = Map::new();
    for event in state.events_in("default").filter(|event| is_snapshotter(event)) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/involvedObject/name");
        // A content that an administrator creates has the name of the scenario
        if name == scenario.name || uids.iter().any(|uid| name.contains(uid)) {
            let of_object = events.entry(name).or_insert_with(|| json!({}));
            if let Some(of_object) = of_object.as_object_mut() {
                of_object.insert(format!("{} {}", text("/type"), text("/reason")), true.into());
            }
        }
    }
    stable(Value::Object(events), state, scenario)
}

/// Returns the UIDs of the VolumeSnapshots and VolumeGroupSnapshots that the scenario has or had.
fn uids<'a>(state: &'a State, scenario: &Scenario) -> BTreeSet<&'a str> {
    let uids = [Kind::Snapshot, Kind::GroupSnapshot].map(|kind| state.uids_in(kind, scenario.name));
    uids.into_iter().flatten().collect()
}

fn stable(value: Value, state: &State, scenario: &Scenario) -> Value {
    group_names::stable(super::stable(value, state, scenario), state, scenario.name)
}

/// Removes what differs in each run from an object.
fn normalized(object: &Value) -> Value {
    let mut object = object.clone();
    for pointer in VOLATILE
        .into_iter()
        .chain(["/spec/volumeSnapshotRef/resourceVersion", "/spec/volumeGroupSnapshotRef/resourceVersion"])
    {
        remove(&mut object, pointer);
    }
    for pointer in PRESENT {
        if let Some(value) = object.pointer_mut(pointer) {
            *value = "set".into();
        }
    }
    let members = object.pointer_mut("/status/volumeSnapshotInfoList").and_then(Value::as_array_mut);
    for time in members.into_iter().flatten().filter_map(|member| member.get_mut("creationTime")) {
        *time = "set".into();
    }
    sort_lists(&mut object);
    object
}
