//! Conditions of objects that scenarios wait for.

use serde_json::{Value, json};

use super::kinds::Kind;
use super::observed::State;
use super::outcome::members;
use super::provisioner::is_provisioner;
use super::resizer::is_resizer;
use super::scenario::Until;
use super::snapshotter::is_snapshotter;

/// Returns true if an object meets a condition.
pub(super) fn holds(state: &State, namespace: &str, kind: Kind, name: &str, until: &Until) -> bool {
    let object = state.get(kind, namespace, name);
    let field = |pointer: &str| object.and_then(|object| object.pointer(pointer));
    match until {
        Until::Bound => is_bound(state, namespace, name),
        Until::Decided => {
            is_bound(state, namespace, name) || has_event(state, namespace, kind, name, "ProvisioningFailed", "")
        }
        Until::Reported => ["ProvisioningSucceeded", "ProvisioningFailed"]
            .into_iter()
            .any(|reason| has_event(state, namespace, kind, name, reason, "")),
        Until::Retried => volumes_of(state, namespace, name) > 1,
        Until::Exists => object.is_some(),
        Until::Gone => object.is_none(),
        Until::NoMembers => members(state, namespace).is_empty(),
        Until::Condition(kind) => {
            let conditions = field("/status/conditions").and_then(Value::as_array);
            conditions.into_iter().flatten().any(|condition| condition.pointer("/type") == Some(&json!(kind)))
        }
        Until::Event(reason, text) => has_event(state, namespace, kind, name, reason, text),
        Until::Field(pointer, value) => object.is_some() && field(pointer).unwrap_or(&Value::Null) == value,
        Until::Contains(pointer, value) => contains(field(pointer), value),
        Until::Without(pointer, value) => !contains(field(pointer), value),
    }
}

/// Returns how many LogicalVolumes were ever created for a claim.
fn volumes_of(state: &State, namespace: &str, claim: &str) -> usize {
    let Some(uid) = state.get(Kind::Claim, namespace, claim).and_then(|claim| claim.pointer("/metadata/uid")) else {
        return 0;
    };
    let uid = uid.as_str().unwrap_or_default();
    state.uids.values().filter(|key| key.kind == Kind::LogicalVolume && key.name.contains(uid)).count()
}

fn contains(list: Option<&Value>, value: &Value) -> bool {
    list.and_then(Value::as_array).is_some_and(|values| values.contains(value))
}

/// Returns true if a claim and its PersistentVolume are bound, and all about it has been observed.
fn is_bound(state: &State, namespace: &str, name: &str) -> bool {
    let Some(claim) = state.get(Kind::Claim, namespace, name) else { return false };
    let volume = claim.pointer("/spec/volumeName").and_then(Value::as_str);
    let Some(volume) = volume.and_then(|volume| state.get(Kind::Volume, "", volume)) else { return false };
    let is_bound = |object: &Value| object.pointer("/status/phase") == Some(&json!("Bound"));
    let was_provisioned = volume.pointer("/metadata/annotations/pv.kubernetes.io~1provisioned-by").is_some();
    is_bound(claim)
        && is_bound(volume)
        && (!was_provisioned || has_event(state, namespace, Kind::Claim, name, "ProvisioningSucceeded", ""))
}

/// Returns true if the program under test has reported this about an object.
fn has_event(state: &State, namespace: &str, kind: Kind, name: &str, reason: &str, message: &str) -> bool {
    state.events_in(if kind.is_namespaced() { namespace } else { "default" }).any(|event| {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        text("/involvedObject/name") == name
            && Kind::of_reference(text("/involvedObject/kind")) == Some(kind)
            && text("/reason") == reason
            && text("/message").contains(message)
            && (is_provisioner(event) || is_resizer(event) || is_snapshotter(event))
    })
}
