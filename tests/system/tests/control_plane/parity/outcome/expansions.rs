//! The outcome of a scenario that compares expansions and modifications: its claims with their conditions,
//! PersistentVolumes and LogicalVolumes, and the Events of the resizer.

use serde_json::{Map, Value, json};

use super::{BARRIER, CONFLICTS, is_barrier, remove, stable};
use crate::parity::kinds::Kind;
use crate::parity::observed::State;
use crate::parity::resizer::is_resizer;
use crate::parity::scenario::Scenario;

/// The conditions of claims that resizers write. Kubernetes has others.
const CONDITIONS: [&str; 6] = [
    "ControllerResizeError",
    "FileSystemResizePending",
    "ModifyVolumeError",
    "ModifyingVolume",
    "NodeResizeError",
    "Resizing",
];
/// Members of LogicalVolumes that depend on time: an agent sets and clears the status with each attempt, and the
/// controller adds the claim of a volume that an administrator has created when it starts.
const VARIABLE: [&str; 3] = ["/metadata/annotations/topolvm.io~1claim", "/status/code", "/status/message"];
/// The annotation with the time of a request, as a JSON pointer.
const REQUESTED_AT: &str = "/metadata/annotations/topolvm.io~1resize-requested-at";

/// Returns the objects.
pub(super) fn objects(state: &State, scenario: &Scenario) -> Value {
    let uids = state.claim_uids(scenario.name);
    // An object that an administrator creates has the name of the scenario
    let is_ours_by_name = |name: &str| name == scenario.name || uids.iter().any(|uid| name.contains(uid));
    let mut objects = Map::new();
    for (key, object) in &state.objects {
        let is_ours = match key.kind {
            Kind::Claim => key.namespace == scenario.name,
            Kind::LogicalVolume | Kind::Volume => is_ours_by_name(&key.name),
            _ => false,
        };
        if is_ours && !is_barrier(state, key, scenario) {
            objects.insert(format!("{:?} {}", key.kind, key.name), normalized(object, key.kind));
        }
    }
    stable(Value::Object(objects), state, scenario)
}

/// Returns the Events, without their number, which depends on time, and without conflicts with other clients.
pub(super) fn events(state: &State, scenario: &Scenario) -> Value {
    let mut events = Map::new();
    for event in state.events_in(scenario.name).filter(|event| is_resizer(event)) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/involvedObject/name");
        let is_conflict = CONFLICTS.iter().any(|conflict| text("/message").contains(conflict));
        if is_conflict || name.starts_with(BARRIER) {
            continue;
        }
        let of_object = events.entry(name).or_insert_with(|| json!({}));
        if let Some(of_object) = of_object.as_object_mut() {
            of_object.insert(format!("{} {}", text("/type"), text("/reason")), true.into());
        }
    }
    stable(Value::Object(events), state, scenario)
}

/// Removes what differs in each run from an object.
fn normalized(object: &Value, kind: Kind) -> Value {
    let conditions = conditions(object);
    let mut object = super::normalized(object, kind);
    if let Some(time) = object.pointer_mut(REQUESTED_AT) {
        *time = "set".into();
    }
    if kind == Kind::LogicalVolume {
        for pointer in VARIABLE {
            remove(&mut object, pointer);
        }
    }
    if kind == Kind::Claim
        && let Some(status) = object.pointer_mut("/status").and_then(Value::as_object_mut)
    {
        status.insert("conditions".to_owned(), conditions);
    }
    object
}

/// Returns status and reason of the conditions of a claim by their type.
fn conditions(claim: &Value) -> Value {
    let mut found = Map::new();
    for condition in claim.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
        let text = |pointer: &str| condition.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if CONDITIONS.contains(&text("/type")) {
            found.insert(text("/type").to_owned(), json!({"status": text("/status"), "reason": text("/reason")}));
        }
    }
    Value::Object(found)
}
