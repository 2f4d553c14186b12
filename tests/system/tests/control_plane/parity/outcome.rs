//! The outcome of a scenario in a form that does not depend on the run: objects without times, versions and generated
//! values, and the Events of the provisioner.

mod expansions;
mod group_names;
mod snapshots;

use serde_json::{Map, Value, json};

pub(super) use group_names::members;

use super::kinds::Kind;
use super::observed::{Key, State};
use super::provisioner::is_provisioner;
use super::scenario::{Compared, SELF, Scenario};

/// Members of objects that differ in each run, as JSON pointers.
const VOLATILE: [&str; 9] = [
    "/metadata/creationTimestamp",
    "/metadata/deletionGracePeriodSeconds",
    "/metadata/generation",
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/uid",
    "/spec/claimRef/resourceVersion",
    "/status/conditions",
    "/status/lastPhaseTransitionTime",
];
/// The attribute of a volume with the identity of the provisioner's process.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// Parts of messages about an object that another client changed between a read and a write. The attempt is repeated;
/// whether it happens depends on time.
const CONFLICTS: [&str; 2] = ["the object has been modified", "the server rejected our request"];

/// Returns the objects of a scenario: its claims, their volumes, and its snapshots.
pub(super) fn objects(state: &State, scenario: &Scenario) -> Value {
    match scenario.compared {
        Compared::Provisioning => {}
        Compared::Snapshots => return snapshots::objects(state, scenario),
        Compared::Expansions => return expansions::objects(state, scenario),
    }
    let uids = state.claim_uids(scenario.name);
    let is_of_claim = |name: &str| uids.iter().any(|uid| name.contains(uid));
    let mut objects = Map::new();
    for (key, object) in &state.objects {
        let is_ours = match key.kind {
            Kind::Claim | Kind::Snapshot => key.namespace == scenario.name,
            // One whose creation failed is deleted at some moment
            Kind::LogicalVolume => is_of_claim(&key.name) && object.pointer("/metadata/deletionTimestamp").is_none(),
            Kind::Volume => {
                is_of_claim(&key.name) || object.pointer("/spec/claimRef/namespace") == Some(&json!(scenario.name))
            }
            _ => false,
        };
        if is_ours && !is_barrier(state, key, scenario) {
            objects.insert(format!("{:?} {}", key.kind, key.name), normalized(object, key.kind));
        }
    }
    stable(Value::Object(objects), state, scenario)
}

/// Returns the Events of the provisioner about the objects of a scenario, without their number, which depends on time,
/// and without conflicts with other clients.
pub(super) fn events(state: &State, scenario: &Scenario) -> Value {
    match scenario.compared {
        Compared::Provisioning => {}
        Compared::Snapshots => return snapshots::events(state, scenario),
        Compared::Expansions => return expansions::events(state, scenario),
    }
    let uids = state.claim_uids(scenario.name);
    let mut events = Map::new();
    let all = state.events_in(scenario.name).chain(state.events_in("default"));
    for event in all.filter(|event| is_provisioner(event)) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/involvedObject/kind"), text("/involvedObject/name"));
        let is_ours = text("/involvedObject/namespace") == scenario.name || uids.iter().any(|uid| name.contains(uid));
        let is_conflict = CONFLICTS.iter().any(|conflict| text("/message").contains(conflict));
        if is_ours && !is_conflict && !name.starts_with(BARRIER) {
            let of_object = events.entry(format!("{kind} {name}")).or_insert_with(|| json!({}));
            if let Some(of_object) = of_object.as_object_mut() {
                of_object.insert(format!("{} {}", text("/type"), text("/reason")), true.into());
            }
        }
    }
    stable(Value::Object(events), state, scenario)
}

/// Returns whether one LogicalVolume was ever created for each claim or VolumeSnapshot of a scenario, or several: the
/// number of attempts depends on time.
pub(super) fn volumes_ever_created(state: &State, scenario: &Scenario) -> Value {
    let owners = match scenario.compared {
        Compared::Provisioning | Compared::Expansions => Kind::Claim,
        Compared::Snapshots => Kind::Snapshot,
    };
    let uids = state.uids_in(owners, scenario.name);
    let mut created = Map::new();
    for key in state.uids.values().filter(|key| key.kind == Kind::LogicalVolume) {
        let of = uids.iter().find(|uid| key.name.contains(**uid));
        if let Some(claim) = of.and_then(|uid| state.uids.get(*uid)).filter(|claim| !claim.name.starts_with(BARRIER)) {
            let count = created.entry(claim.name.clone()).or_insert_with(|| json!(0));
            *count = if *count == 0 { json!(1) } else { json!("several") };
        }
    }
    Value::Object(created)
}

/// Prefix of the names of the claims that show that the provisioner has seen all earlier ones.
pub(super) const BARRIER: &str = "barrier";

fn is_barrier(state: &State, key: &Key, scenario: &Scenario) -> bool {
    let is_its_uid = |uid: &str| {
        state.uids.get(uid).is_some_and(|claim| claim.name.starts_with(BARRIER) && claim.namespace == scenario.name)
    };
    key.name.starts_with(BARRIER)
        || state.claim_uids(scenario.name).into_iter().any(|uid| key.name.contains(uid) && is_its_uid(uid))
}

/// Removes what differs in each run from an object.
fn normalized(object: &Value, kind: Kind) -> Value {
    let mut object = object.clone();
    for pointer in VOLATILE {
        remove(&mut object, pointer);
    }
    if let Some(time) = object.pointer_mut("/metadata/deletionTimestamp") {
        *time = "set".into();
    }
    if let Some(identity) = object.pointer_mut("/spec/csi/volumeAttributes").and_then(|it| it.get_mut(IDENTITY)) {
        *identity = "identity".into();
    }
    if kind == Kind::Snapshot {
        // snapshot-controller writes the rest
        let all = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let is_ours = |name: &&Value| name.as_str().is_some_and(|name| name.starts_with("provisioner."));
        let finalizers: Vec<_> = all.into_iter().flatten().filter(is_ours).collect();
        return json!({"metadata": {"finalizers": finalizers}});
    }
    sort_lists(&mut object);
    object
}

/// Sorts finalizers: who adds which first is a race.
fn sort_lists(object: &mut Value) {
    if let Some(finalizers) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut) {
        finalizers.sort_by_key(ToString::to_string);
    }
}

/// Removes the member at a JSON pointer.
fn remove(object: &mut Value, pointer: &str) {
    if let Some((parent, member)) = pointer.rsplit_once('/')
        && let Some(members) = object.pointer_mut(parent).and_then(Value::as_object_mut)
    {
        members.remove(&member.replace("~1", "/").replace("~0", "~"));
    }
}

/// Replaces UIDs of objects by their names, and the name of the node if it is arbitrary.
fn stable(value: Value, state: &State, scenario: &Scenario) -> Value {
    let mut text = value.to_string();
    for (uid, key) in &state.uids {
        if text.contains(uid.as_str()) {
            text = text.replace(uid, &format!("<{:?} {}>", key.kind, key.name));
        }
    }
    // Names that contain the UID of a claim
    for (uid, key) in &state.uids {
        if text.contains(uid.as_str()) {
            text = text.replace(uid, &format!("<{:?} {}>", key.kind, key.name));
        }
    }
    if scenario.any_node {
        for node in [super::scenario::ALPHA, super::scenario::BETA] {
            text = text.replace(&format!("{node:?}"), "\"<node>\"");
        }
    }
    serde_json::from_str(&text.replace(SELF, scenario.name)).unwrap_or(value)
}
