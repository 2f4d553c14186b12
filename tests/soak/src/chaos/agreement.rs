//! Compares the volumes of Kubernetes, lvmd and LVM: none may be lost, leaked or duplicated.

use std::collections::BTreeSet;

use serde_json::Value;
use topolvm_api::ApiFlavor;

use super::disagreement::{Disagreement, Kind};
use super::fields::{bytes, find_by_name, find_by_uid, find_by_volume_id, is_deleting, text, volume_id};
use super::lineage::check_lineage;
use super::state::{Lv, NodeState, State};

/// Returns all disagreements in a state. There are some while operations are in progress, and none once all have ended.
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

/// Checks that a claim is Bound to one volume that is large enough.
fn check_claim(state: &State, claim: &Value, all: &mut Vec<Disagreement>) {
    let name = text(claim, "/metadata/name");
    let volume_name = text(claim, "/spec/volumeName");
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[name, volume_name], what));
    if is_deleting(claim) {
        return report(Kind::Different, format!("claim {name} is still being deleted"));
    }
    if text(claim, "/status/phase") != "Bound" {
        return report(Kind::Different, format!("claim {name} is {} and not Bound", text(claim, "/status/phase")));
    }
    let Some(volume) = find_by_name(&state.volumes, volume_name) else {
        return report(Kind::Lost, format!("claim {name} has no volume {volume_name}"));
    };
    if text(volume, "/spec/claimRef/uid") != text(claim, "/metadata/uid") {
        report(Kind::Different, format!("volume {volume_name} of claim {name} belongs to another"));
    }
    let (wanted, has) = (bytes(claim, "/spec/resources/requests/storage"), bytes(volume, "/spec/capacity/storage"));
    if has < wanted {
        report(Kind::Different, format!("claim {name} wants {wanted:?} bytes, and its volume has {has:?}"));
    }
}

/// Checks that a volume has a claim, and one LV that is large enough, and that its node affinity names the LV's node.
fn check_volume(state: &State, volume: &Value, all: &mut Vec<Disagreement>) {
    let (name, handle) = (text(volume, "/metadata/name"), text(volume, "/spec/csi/volumeHandle"));
    let claim = text(volume, "/spec/claimRef/name");
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[claim, name, handle], what));
    let uid = text(volume, "/spec/claimRef/uid");
    if is_deleting(volume) || find_by_uid(&state.claims, uid).is_none() {
        report(Kind::Leaked, format!("volume {name} is still there, {}", text(volume, "/status/phase")));
    }
    match state.lvs(handle).as_slice() {
        [] => report(Kind::Lost, format!("volume {name} has no LV {handle}")),
        [(_, lv)] if Some(lv.bytes) < bytes(volume, "/spec/capacity/storage") => {
            report(Kind::Different, format!("volume {name} is larger than its LV of {} bytes", lv.bytes));
        }
        [(_, lv)] if !lv.is_active => report(Kind::Different, format!("LV {handle} of volume {name} is not active")),
        [_] => {}
        more => report(Kind::Double, format!("volume {name} has {} LVs", more.len())),
    }
    if let Some(object) = find_by_volume_id(&state.objects, handle) {
        let (node, allowed) = (text(object, "/spec/nodeName"), allowed_nodes(volume));
        if allowed != [node] {
            report(Kind::Different, format!("volume {name} is on {node}, and says that it can be used on {allowed:?}"));
        }
    }
}

fn check_snapshot(state: &State, snapshot: &Value, all: &mut Vec<Disagreement>) {
    let name = text(snapshot, "/metadata/name");
    let content = text(snapshot, "/status/boundVolumeSnapshotContentName");
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[name, content], what));
    if is_deleting(snapshot) {
        return report(Kind::Different, format!("snapshot {name} is still being deleted"));
    }
    if snapshot.pointer("/status/readyToUse") != Some(&Value::Bool(true)) {
        return report(Kind::Different, format!("snapshot {name} is not ready"));
    }
    if find_by_name(&state.contents, content).is_none() {
        report(Kind::Lost, format!("snapshot {name} has no content {content}"));
    }
}

fn check_content(state: &State, content: &Value, all: &mut Vec<Disagreement>) {
    let (name, handle) = (text(content, "/metadata/name"), text(content, "/status/snapshotHandle"));
    let snapshot = text(content, "/spec/volumeSnapshotRef/name");
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[snapshot, name, handle], what));
    let uid = text(content, "/spec/volumeSnapshotRef/uid");
    if is_deleting(content) || find_by_uid(&state.snapshots, uid).is_none() {
        report(Kind::Leaked, format!("content {name} of snapshot {snapshot} is still there"));
    }
    match state.lvs(handle).as_slice() {
        [] => report(Kind::Lost, format!("content {name} has no LV {handle}")),
        [_] => {}
        more => report(Kind::Double, format!("content {name} has {} LVs", more.len())),
    }
}

/// Checks that a LogicalVolume belongs to one volume or snapshot content, and has one LV, which is on its node.
fn check_object(state: &State, object: &Value, all: &mut Vec<Disagreement>) {
    let (name, id) = (text(object, "/metadata/name"), volume_id(object));
    let volumes = state.volumes.iter().map(|volume| text(volume, "/spec/csi/volumeHandle"));
    let contents = state.contents.iter().map(|content| text(content, "/status/snapshotHandle"));
    let owners = volumes.chain(contents).filter(|handle| *handle == id).count();
    if owners == 0 {
        let what = format!("LogicalVolume {name} belongs to no volume and no snapshot");
        let orphan = Some(name.to_owned());
        all.push(Disagreement { orphan, ..Disagreement::new(Kind::Leaked, &[name, id], what) });
        // Its creation failed, and is not requested again
        if text(object, "/status/volumeID").is_empty() && state.lvs(id).is_empty() {
            return;
        }
    }
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[name, id], what));
    if owners > 1 {
        report(Kind::Double, format!("LogicalVolume {name} belongs to {owners} volumes and snapshots"));
    }
    if is_deleting(object) {
        report(Kind::Different, format!("LogicalVolume {name} is still being deleted"));
    }
    if text(object, "/status/volumeID").is_empty() {
        report(
            Kind::Different,
            format!("LogicalVolume {name} does not say that it is made: {:?}", object.get("status")),
        );
    }
    match state.lvs(id).as_slice() {
        [(place, lv)] => check_object_lv(state, object, place, lv, all),
        [] => report(Kind::Lost, format!("LogicalVolume {name} has no LV {id}")),
        more => report(Kind::Double, format!("LogicalVolume {name} has {} LVs", more.len())),
    }
}

/// Checks that the LV of a LogicalVolume is on its node and has its size, class and source.
fn check_object_lv(state: &State, object: &Value, place: &str, lv: &Lv, all: &mut Vec<Disagreement>) {
    let (name, id) = (text(object, "/metadata/name"), volume_id(object));
    let mut report = |what: String| all.push(Disagreement::new(Kind::Different, &[name, id], what));
    let node = text(object, "/spec/nodeName");
    if place != node {
        report(format!("LogicalVolume {name} of {node} is on {place}"));
    }
    let (wanted, current) = (bytes(object, "/spec/size"), bytes(object, "/status/currentSize"));
    if wanted > Some(lv.bytes) || current != Some(lv.bytes) {
        report(format!("LogicalVolume {name} requests {wanted:?} and reports {current:?}, LVM has {}", lv.bytes));
    }
    check_lineage(state, object, lv, all);
}

/// Checks that lvmd and the Node report what LVM has, and that each LV of the node is consistent.
fn check_node(state: &State, node: &NodeState, all: &mut Vec<Disagreement>) {
    node.lvm.iter().for_each(|lv| check_lv(state, node, lv, all));
    check_lvmd_list(node, all);
    let classes: BTreeSet<_> = node.free.keys().chain(node.published.keys()).collect();
    for class in classes {
        let (free, published) = (node.free.get(class), node.published.get(class));
        if free != published {
            let what = format!("Node {} publishes {published:?} free bytes of {class} and has {free:?}", node.name);
            all.push(Disagreement::new(Kind::Different, &[], what));
        }
    }
}

/// Checks that an LV has its LogicalVolume and is complete.
fn check_lv(state: &State, node: &NodeState, lv: &Lv, all: &mut Vec<Disagreement>) {
    let (name, tags) = (lv.name.as_str(), &lv.tags);
    let mut report = |kind: Kind, what: String| all.push(Disagreement::new(kind, &[name], what));
    if find_by_volume_id(&state.objects, name).is_none() {
        report(Kind::Leaked, format!("LV {name} of {} has no LogicalVolume; tags: {tags}", node.name));
    }
    if ["/making", "/wiping"].iter().any(|tag| tags.contains(tag)) {
        report(Kind::Different, format!("LV {name} of {} is marked as half made: {tags}", node.name));
    }
}

/// Checks that lvmd lists each volume of LVM once, with its size.
fn check_lvmd_list(node: &NodeState, all: &mut Vec<Disagreement>) {
    let in_lvm: BTreeSet<_> = node.lvm.iter().map(|lv| (lv.name.clone(), lv.bytes)).collect();
    let listed: BTreeSet<_> = node.listed.iter().cloned().collect();
    for (name, bytes) in in_lvm.symmetric_difference(&listed) {
        let what = format!("lvmd of {} and LVM differ about {name} of {bytes} bytes", node.name);
        all.push(Disagreement::new(Kind::Different, &[name], what));
    }
    if node.listed.len() != listed.len() {
        all.push(Disagreement::new(Kind::Double, &[], format!("lvmd of {} lists a volume twice", node.name)));
    }
}

/// Returns the nodes of a volume's node affinity; none if that has another form than csi-provisioner's.
fn allowed_nodes(volume: &Value) -> Vec<&str> {
    let terms = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms").and_then(Value::as_array);
    let [term] = terms.map(Vec::as_slice).unwrap_or_default() else { return Vec::new() };
    let expressions = term.get("matchExpressions").and_then(Value::as_array);
    let [expression] = expressions.map(Vec::as_slice).unwrap_or_default() else { return Vec::new() };
    if text(expression, "/key") != ApiFlavor::TopoLvm.topology_key() || text(expression, "/operator") != "In" {
        return Vec::new();
    }
    let values = expression.get("values").and_then(Value::as_array);
    values.into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::{SIZE, consistent_state, lv, messages};
    use super::*;

    fn after(change: impl FnOnce(&mut State)) -> String {
        let mut state = consistent_state();
        change(&mut state);
        messages(&disagreements(&state))
    }

    #[test]
    fn consistent_cluster_has_no_disagreements() {
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
            state.claims.remove(2);
            state.volumes.remove(2);
        });
        assert!(leaked.contains("leaked: LogicalVolume pv-t belongs to no"), "{leaked}");
        assert!(after(|state| drop(state.objects.remove(0))).contains("leaked: LV lv1"));
        assert!(after(|state| state.claims.clear()).contains("leaked: volume pv is still there"));
        assert!(
            after(|state| state.snapshots.clear()).contains("leaked: content content of snapshot s is still there")
        );
    }

    #[test]
    fn what_is_there_twice_is_noticed() {
        let twice = after(|state| {
            let other = NodeState { name: "n2".to_owned(), ..state.nodes[0].clone() };
            state.nodes.push(other);
        });
        assert!(twice.contains("double: volume pv has 2 LVs"), "{twice}");
        assert!(
            twice.contains("double: content content has 2 LVs") && twice.contains("double: LogicalVolume pv has 2 LVs"),
            "{twice}"
        );
        let owners = after(|state| state.volumes[1]["spec"]["csi"]["volumeHandle"] = json!("lv1"));
        assert!(owners.contains("double: LogicalVolume pv belongs to 2 volumes"), "{owners}");
        let listed = after(|state| state.nodes[0].listed.push(("lv1".to_owned(), SIZE)));
        assert_eq!(listed, "double: lvmd of n1 lists a volume twice\n");
    }

    #[test]
    fn what_is_half_made_or_not_grown_is_noticed() {
        let half = after(|state| state.nodes[0].lvm[0].tags = "topolvm.io/making=x#1.2".to_owned());
        assert!(half.contains("half made"), "{half}");
        let small = after(|state| state.claims[0]["spec"]["resources"]["requests"]["storage"] = json!("65Mi"));
        assert!(small.contains("claim c wants"), "{small}");
    }

    #[test]
    fn reports_of_lvmd_and_the_node_are_compared_with_lvm() {
        assert!(after(|state| drop(state.nodes[0].listed.remove(0))).contains("differ about lv1"));
        let publishes = |class: &str| after(|state| state.nodes[0].published.extend([(class.to_owned(), 6)]));
        for class in ["00default", "ssd", "thin"] {
            let other = publishes(class);
            assert!(other.contains(&format!("publishes Some(6) free bytes of {class} and has")), "{other}");
            assert!(
                after(|state| state.nodes[0].published.retain(|name, _| name != class))
                    .contains("publishes None free bytes")
            );
        }
        let unknown = publishes("tape");
        assert!(unknown.contains("free bytes of tape and has None"), "{unknown}");
    }

    #[test]
    fn a_volume_that_sends_pods_to_another_node_is_noticed() {
        let pointer = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values";
        let values = |values: Value| after(|state| *state.volumes[0].pointer_mut(pointer).unwrap() = values);
        let other = values(json!(["n2"]));
        assert_eq!(other, "volume pv is on n1, and says that it can be used on [\"n2\"]\n");
        assert!(values(json!(["n1", "n2"])).contains("volume pv is on n1"));
        assert!(after(|state| state.volumes[0]["spec"]["nodeAffinity"] = json!(null)).contains("can be used on []"));
        let moved = after(|state| state.objects[0]["spec"]["nodeName"] = json!("n2"));
        assert!(moved.contains("LogicalVolume pv of n2 is on n1"), "{moved}");
    }

    #[test]
    fn a_wrong_origin_is_noticed() {
        assert!(
            after(|state| lv(state, "lv3").origin = "lv1".to_owned()).contains("LogicalVolume pv-r should come from")
        );
    }
}
