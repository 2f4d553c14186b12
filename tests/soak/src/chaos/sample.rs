//! A hand-written consistent state, for tests that change it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testbed::topolvm::{THIN_CLASS, THIN_POOL, THIN_VG};

use super::disagreement::Disagreement;
use super::state::{DEFAULT_CLASS, Lv, NodeState, State, THICK_CLASS, THICK_VG};

pub(super) const SIZE: u64 = 64 << 20;

/// Returns a state without disagreements: a thin claim `c`, a snapshot `s` of it, a claim `r` restored from that, and a
/// thick claim `t`, with the LVs 1 to 4.
pub(super) fn consistent_state() -> State {
    let free = [(DEFAULT_CLASS, 5), (THICK_CLASS, 5), (THIN_CLASS, 7)];
    let free: BTreeMap<_, _> = free.into_iter().map(|(class, bytes)| (class.to_owned(), bytes)).collect();
    let lvm = vec![thin("lv1", ""), thin("lv2", "lv1"), thin("lv3", "lv2"), lvm_volume("lv4", THICK_VG, "", "")];
    State {
        claims: vec![claim("c", "pv"), claim("r", "pv-r"), claim("t", "pv-t")],
        volumes: vec![volume("pv", "c", "lv1"), volume("pv-r", "r", "lv3"), volume("pv-t", "t", "lv4")],
        snapshots: vec![json!({
            "metadata": {"name": "s", "uid": "s-uid"},
            "status": {"readyToUse": true, "boundVolumeSnapshotContentName": "content"},
        })],
        contents: vec![json!({
            "metadata": {"name": "content"}, "spec": {"volumeSnapshotRef": {"name": "s", "uid": "s-uid"}},
            "status": {"snapshotHandle": "lv2"},
        })],
        objects: vec![
            object("pv", "lv1", THIN_CLASS, ""),
            object("content", "lv2", THIN_CLASS, "pv"),
            object("pv-r", "lv3", THIN_CLASS, "content"),
            object("pv-t", "lv4", "", ""),
        ],
        nodes: vec![NodeState {
            name: "n1".to_owned(),
            listed: lvm.iter().map(|lv| (lv.name.clone(), lv.bytes)).collect(),
            lvm,
            free: free.clone(),
            published: free,
        }],
    }
}

/// Returns the messages of disagreements, a line each.
pub(super) fn messages(all: &[Disagreement]) -> String {
    all.iter().map(|disagreement| disagreement.to_string() + "\n").collect()
}

/// Finds an LV by its name.
pub(super) fn lv<'a>(state: &'a mut State, name: &str) -> &'a mut Lv {
    state.nodes.iter_mut().flat_map(|node| &mut node.lvm).find(|lv| lv.name == name).unwrap()
}

fn thin(name: &str, origin: &str) -> Lv {
    lvm_volume(name, THIN_VG, THIN_POOL, origin)
}

fn lvm_volume(name: &str, group: &str, pool: &str, origin: &str) -> Lv {
    let [name, group, pool, origin] = [name, group, pool, origin].map(str::to_owned);
    Lv { name, group, pool, origin, bytes: SIZE, tags: String::new(), is_active: true }
}

fn claim(name: &str, volume: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("{name}-uid")}, "status": {"phase": "Bound"},
        "spec": {"volumeName": volume, "resources": {"requests": {"storage": "61Mi"}}},
    })
}

fn volume(name: &str, claim: &str, handle: &str) -> Value {
    let expressions = json!([{"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]}]);
    json!({
        "metadata": {"name": name}, "status": {"phase": "Bound"},
        "spec": {
            "capacity": {"storage": "64Mi"}, "csi": {"volumeHandle": handle},
            "claimRef": {"name": claim, "uid": format!("{claim}-uid")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
        },
    })
}

fn object(name: &str, uid: &str, class: &str, source: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": uid},
        "spec": {"nodeName": "n1", "size": "64Mi", "deviceClass": class, "source": source},
        "status": {"volumeID": uid, "currentSize": "64Mi"},
    })
}
