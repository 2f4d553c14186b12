//! Whether everybody has the same volumes: nothing lost, nothing leaked, nothing twice.

use std::collections::BTreeSet;

use serde_json::Value;
use topolvm_api::parse_bytes;

use super::state::{Lv, NodeState, State};
use super::steps::quantity;

/// Something that does not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disagreement {
    /// Names and ids that lead to it in logs and histories.
    pub(super) about: Vec<String>,
    pub(super) what: String,
    /// The LogicalVolume that belongs to nothing, if that is it.
    pub(super) leaked: Option<String>,
}

/// All of them. While something is still being done there are some; once everything has settled there must be none.
pub(super) fn disagreements(state: &State) -> Vec<Disagreement> {
    let mut all = Vec::new();
    state.claims.iter().for_each(|claim| check_claim(state, claim, &mut all));
    state.volumes.iter().for_each(|volume| check_volume(state, volume, &mut all));
    state.snapshots.iter().for_each(|snapshot| check_snapshot(state, snapshot, &mut all));
    state.contents.iter().for_each(|content| check_content(state, content, &mut all));
    state.objects.iter().for_each(|object| check_object(state, object, &mut all));
    state.nodes.iter().for_each(|node| check_node(state, node, &mut all));
    all
}

/// Each bound claim has one volume that is large enough.
fn check_claim(state: &State, claim: &Value, all: &mut Vec<Disagreement>) {
    let name = text(claim, "/metadata/name");
    let volume_name = text(claim, "/spec/volumeName");
    let mut say = |what: String| add(all, &[name, volume_name], what);
    if is_deleting(claim) {
        return say(format!("claim {name} is still being deleted"));
    }
    if text(claim, "/status/phase") != "Bound" {
        return say(format!("claim {name} is {} and not Bound", text(claim, "/status/phase")));
    }
    let Some(volume) = state.volumes.iter().find(|volume| text(volume, "/metadata/name") == volume_name) else {
        return say(format!("lost: claim {name} has no volume {volume_name}"));
    };
    if text(volume, "/spec/claimRef/uid") != text(claim, "/metadata/uid") {
        say(format!("volume {volume_name} of claim {name} belongs to another"));
    }
    let (wanted, has) = (bytes(claim, "/spec/resources/requests/storage"), bytes(volume, "/spec/capacity/storage"));
    if has < wanted {
        say(format!("claim {name} wants {wanted:?} bytes, and its volume has {has:?}"));
    }
}

/// Each volume has a claim, and one LV that is large enough.
fn check_volume(state: &State, volume: &Value, all: &mut Vec<Disagreement>) {
    let (name, handle) = (text(volume, "/metadata/name"), text(volume, "/spec/csi/volumeHandle"));
    let claim = text(volume, "/spec/claimRef/name");
    let mut say = |what: String| add(all, &[claim, name, handle], what);
    let uid = text(volume, "/spec/claimRef/uid");
    if is_deleting(volume) || !state.claims.iter().any(|claim| text(claim, "/metadata/uid") == uid) {
        say(format!("volume {name} is still there, {}", text(volume, "/status/phase")));
    }
    match lvs(state, handle).as_slice() {
        [] => say(format!("lost: volume {name} has no LV {handle}")),
        [(_, lv)] if Some(lv.bytes) < bytes(volume, "/spec/capacity/storage") => {
            say(format!("volume {name} is larger than its LV of {} bytes", lv.bytes));
        }
        [(_, lv)] if !lv.is_active => say(format!("LV {handle} of volume {name} is not active")),
        [_] => {}
        more => say(format!("double: volume {name} has {} LVs", more.len())),
    }
}

fn check_snapshot(state: &State, snapshot: &Value, all: &mut Vec<Disagreement>) {
    let name = text(snapshot, "/metadata/name");
    let content = text(snapshot, "/status/boundVolumeSnapshotContentName");
    let mut say = |what: String| add(all, &[name, content], what);
    if is_deleting(snapshot) {
        return say(format!("snapshot {name} is still being deleted"));
    }
    if snapshot.pointer("/status/readyToUse") != Some(&Value::Bool(true)) {
        return say(format!("snapshot {name} is not ready"));
    }
    if !state.contents.iter().any(|object| text(object, "/metadata/name") == content) {
        say(format!("lost: snapshot {name} has no content {content}"));
    }
}

fn check_content(state: &State, content: &Value, all: &mut Vec<Disagreement>) {
    let (name, handle) = (text(content, "/metadata/name"), text(content, "/status/snapshotHandle"));
    let snapshot = text(content, "/spec/volumeSnapshotRef/name");
    let mut say = |what: String| add(all, &[snapshot, name, handle], what);
    let uid = text(content, "/spec/volumeSnapshotRef/uid");
    if is_deleting(content) || !state.snapshots.iter().any(|snapshot| text(snapshot, "/metadata/uid") == uid) {
        say(format!("content {name} of snapshot {snapshot} is still there"));
    }
    let found = lvs(state, handle).len();
    if found != 1 {
        say(format!("content {name} has {found} LVs"));
    }
}

/// Each LogicalVolume belongs to one volume or content, and has one LV, which is on its node.
fn check_object(state: &State, object: &Value, all: &mut Vec<Disagreement>) {
    let (name, uid) = (text(object, "/metadata/name"), text(object, "/metadata/uid"));
    let volumes = state.volumes.iter().map(|volume| text(volume, "/spec/csi/volumeHandle"));
    let contents = state.contents.iter().map(|content| text(content, "/status/snapshotHandle"));
    let owners = volumes.chain(contents).filter(|handle| *handle == uid).count();
    if owners == 0 {
        let what = format!("leaked: LogicalVolume {name} belongs to no volume and no snapshot");
        all.push(Disagreement { about: vec![name.to_owned(), uid.to_owned()], what, leaked: Some(name.to_owned()) });
    }
    let mut say = |what: String| add(all, &[name, uid], what);
    if owners > 1 {
        say(format!("double: LogicalVolume {name} belongs to {owners} volumes and snapshots"));
    }
    if is_deleting(object) {
        say(format!("LogicalVolume {name} is still being deleted"));
    }
    if text(object, "/status/volumeID") != uid {
        say(format!("LogicalVolume {name} does not say that it is made: {:?}", object.get("status")));
    }
    let node = text(object, "/spec/nodeName");
    match lvs(state, uid).as_slice() {
        [(place, lv)] => {
            if *place != node {
                say(format!("LogicalVolume {name} of {node} is on {place}"));
            }
            let (wanted, current) = (bytes(object, "/spec/size"), bytes(object, "/status/currentSize"));
            if wanted > Some(lv.bytes) || current != Some(lv.bytes) {
                say(format!("LogicalVolume {name} wants {wanted:?} and tells of {current:?}, LVM has {}", lv.bytes));
            }
        }
        [] => say(format!("lost: LogicalVolume {name} has no LV {uid}")),
        more => say(format!("double: LogicalVolume {name} has {} LVs", more.len())),
    }
}

/// Each LV has its LogicalVolume and is ready; lvmd and the Node tell what LVM has.
fn check_node(state: &State, node: &NodeState, all: &mut Vec<Disagreement>) {
    for lv in &node.lvm {
        let name = lv.name.as_str();
        if !state.objects.iter().any(|object| text(object, "/metadata/uid") == name) {
            add(all, &[name], format!("leaked: LV {name} of {} has no LogicalVolume; tags: {}", node.name, lv.tags));
        }
        if ["/making", "/wiping"].iter().any(|tag| lv.tags.contains(tag)) {
            add(all, &[name], format!("LV {name} of {} is marked as half made: {}", node.name, lv.tags));
        }
    }
    let in_lvm: BTreeSet<_> = node.lvm.iter().map(|lv| (lv.name.clone(), lv.bytes)).collect();
    let listed: BTreeSet<_> = node.listed.iter().cloned().collect();
    for (name, bytes) in in_lvm.symmetric_difference(&listed) {
        add(all, &[name], format!("lvmd of {} and LVM differ about {name} of {bytes} bytes", node.name));
    }
    if node.listed.len() != listed.len() {
        add(all, &[], format!("double: lvmd of {} lists a volume twice", node.name));
    }
    if node.published != Some(node.free) {
        let Some(published) = node.published else {
            return add(all, &[], format!("Node {} publishes no capacity", node.name));
        };
        add(all, &[], format!("Node {} publishes {published} free bytes and has {}", node.name, node.free));
    }
}

/// Where this LV is.
fn lvs<'a>(state: &'a State, name: &str) -> Vec<(&'a str, &'a Lv)> {
    let of = |node: &'a NodeState| node.lvm.iter().map(|lv| (node.name.as_str(), lv));
    state.nodes.iter().flat_map(of).filter(|(_, lv)| lv.name == name).collect()
}

fn add(all: &mut Vec<Disagreement>, about: &[&str], what: String) {
    let about = about.iter().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect();
    all.push(Disagreement { about, what, leaked: None });
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn bytes(object: &Value, pointer: &str) -> Option<u64> {
    parse_bytes(&quantity(object.pointer(pointer)?.as_str()?)).ok()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One claim and one snapshot of it, and all that belongs to them.
    fn agreed() -> State {
        let lv = |name: &str| Lv { name: name.to_owned(), bytes: 64 << 20, tags: String::new(), is_active: true };
        let object = |name: &str, uid: &str| {
            json!({
                "metadata": {"name": name, "uid": uid}, "spec": {"nodeName": "n1", "size": "64Mi"},
                "status": {"volumeID": uid, "currentSize": "64Mi"},
            })
        };
        State {
            claims: vec![json!({
                "metadata": {"name": "c", "uid": "c-uid"}, "status": {"phase": "Bound"},
                "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "61Mi"}}},
            })],
            volumes: vec![json!({
                "metadata": {"name": "pv"}, "status": {"phase": "Bound"},
                "spec": {
                    "capacity": {"storage": "64Mi"}, "csi": {"volumeHandle": "lv1"}, "claimRef": {"name": "c", "uid": "c-uid"},
                },
            })],
            snapshots: vec![json!({
                "metadata": {"name": "s", "uid": "s-uid"},
                "status": {"readyToUse": true, "boundVolumeSnapshotContentName": "content"},
            })],
            contents: vec![json!({
                "metadata": {"name": "content"}, "spec": {"volumeSnapshotRef": {"name": "s", "uid": "s-uid"}},
                "status": {"snapshotHandle": "lv2"},
            })],
            objects: vec![object("pv", "lv1"), object("content", "lv2")],
            nodes: vec![NodeState {
                name: "n1".to_owned(),
                lvm: vec![lv("lv1"), lv("lv2")],
                listed: vec![("lv1".to_owned(), 64 << 20), ("lv2".to_owned(), 64 << 20)],
                free: 5,
                published: Some(5),
            }],
        }
    }

    fn after(change: impl FnOnce(&mut State)) -> String {
        let mut state = agreed();
        change(&mut state);
        disagreements(&state).into_iter().map(|disagreement| disagreement.what + "\n").collect()
    }

    #[test]
    fn a_cluster_that_is_in_order_is_called_so() {
        assert_eq!(after(|_| {}), "");
        assert!(disagreements(&State::default()).is_empty());
    }

    #[test]
    fn what_is_lost_is_noticed() {
        assert!(after(|state| drop(state.nodes[0].lvm.remove(0))).contains("lost: volume pv has no LV lv1"));
        assert!(after(|state| state.volumes.clear()).contains("lost: claim c has no volume pv"));
        assert!(after(|state| state.contents.clear()).contains("lost: snapshot s"));
        let small = after(|state| state.nodes[0].lvm[0].bytes = 60 << 20);
        assert!(small.contains("larger than its LV"), "{small}");
    }

    #[test]
    fn what_is_leaked_is_noticed() {
        let leaked = after(|state| {
            state.claims.clear();
            state.volumes.clear();
        });
        assert!(leaked.contains("leaked: LogicalVolume pv"), "{leaked}");
        assert!(after(|state| drop(state.objects.remove(0))).contains("leaked: LV lv1"));
        assert!(after(|state| state.claims.clear()).contains("volume pv is still there"));
        assert!(after(|state| state.snapshots.clear()).contains("content content of snapshot s is still there"));
    }

    #[test]
    fn what_is_there_twice_is_noticed() {
        let twice = after(|state| {
            let other = NodeState { name: "n2".to_owned(), ..state.nodes[0].clone() };
            state.nodes.push(other);
        });
        assert!(twice.contains("double: volume pv has 2 LVs"), "{twice}");
    }

    #[test]
    fn what_is_half_made_or_not_grown_is_noticed() {
        let half = after(|state| state.nodes[0].lvm[0].tags = "topolvm.io/making=x#1.2".to_owned());
        assert!(half.contains("half made"), "{half}");
        let small = after(|state| state.claims[0]["spec"]["resources"]["requests"]["storage"] = json!("65Mi"));
        assert!(small.contains("claim c wants"), "{small}");
    }

    #[test]
    fn what_lvmd_and_the_node_tell_is_compared_with_lvm() {
        assert!(after(|state| drop(state.nodes[0].listed.remove(0))).contains("differ about lv1"));
        assert!(after(|state| state.nodes[0].published = Some(6)).contains("publishes 6 free bytes and has 5"));
    }
}
