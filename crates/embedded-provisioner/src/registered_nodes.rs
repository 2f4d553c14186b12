//! The nodes whose kubelet has registered this driver, from a watch of CSINodes.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The nodes with a CSINode. Clones share them.
#[derive(Clone)]
pub(crate) struct RegisteredNodes {
    driver: String,
    /// The key of the driver's topology. A registration without it is incomplete.
    key: String,
    state: Arc<Mutex<State>>,
    listed: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<String, Registration>,
    /// The objects that a list which has not ended has named so far.
    listing: Option<HashMap<String, Registration>>,
}

/// Registration of the driver in the CSINode of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    Registered,
    Missing,
}

impl RegisteredNodes {
    /// Makes an empty set of nodes for this driver with this topology key.
    pub(crate) fn new(driver: String, key: String) -> Self {
        Self { driver, key, state: Arc::default(), listed: Arc::default() }
    }

    /// Forgets that the CSINodes have been listed: another watch of them begins.
    pub(crate) fn await_list(&self) {
        self.listed.send_replace(false);
    }

    /// Waits until all CSINodes have been listed.
    pub(crate) async fn wait_until_listed(&self) -> bool {
        self.listed.subscribe().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns the registration on this node; `None` if it has no CSINode.
    pub(crate) fn get(&self, node: &str) -> Option<Registration> {
        self.state.lock().nodes.get(node).copied()
    }

    /// Applies an event of the watch. Returns the names of nodes where the driver is registered now and was not before.
    pub(crate) fn apply(&self, event: &Event<CSINode>) -> Vec<String> {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listing = Some(HashMap::new()),
            Event::InitApply(node) => {
                let registration = self.registration(node);
                state.listing.get_or_insert_default().insert(node.name_any(), registration);
            }
            Event::InitDone => {
                let listed = state.listing.take().unwrap_or_default();
                let before = std::mem::replace(&mut state.nodes, listed);
                self.listed.send_replace(true);
                let nodes = state.nodes.iter().filter(|(name, now)| is_new(before.get(*name), **now));
                return nodes.map(|(name, _)| name.clone()).collect();
            }
            Event::Apply(node) => {
                let (name, registration) = (node.name_any(), self.registration(node));
                let before = state.nodes.insert(name.clone(), registration);
                if is_new(before.as_ref(), registration) {
                    return vec![name];
                }
            }
            Event::Delete(node) => {
                state.nodes.remove(&node.name_any());
            }
        }
        Vec::new()
    }

    fn registration(&self, node: &CSINode) -> Registration {
        let mut drivers = node.spec.drivers.iter().filter(|driver| driver.name == self.driver);
        let has_key = drivers.any(|driver| driver.topology_keys.iter().flatten().any(|key| *key == self.key));
        if has_key { Registration::Registered } else { Registration::Missing }
    }
}

fn is_new(before: Option<&Registration>, now: Registration) -> bool {
    now == Registration::Registered && before != Some(&now)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn csi_node(name: &str, drivers: Value) -> CSINode {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"drivers": drivers}})).unwrap()
    }

    #[test]
    fn registered_nodes_are_those_with_driver_and_key() {
        let nodes = RegisteredNodes::new("topolvm.io".to_owned(), "k".to_owned());
        let own = || json!([{"name": "topolvm.io", "nodeID": "n", "topologyKeys": ["k"]}]);
        let other = json!([{"name": "ebs.example", "nodeID": "n", "topologyKeys": ["k"]}]);
        let without_key = json!([{"name": "topolvm.io", "nodeID": "n", "topologyKeys": ["other"]}]);
        assert!(nodes.apply(&Event::Init).is_empty());
        for node in [csi_node("a", own()), csi_node("b", other.clone()), csi_node("c", without_key)] {
            assert!(nodes.apply(&Event::InitApply(node)).is_empty());
        }
        assert_eq!(nodes.get("a"), None);
        assert_eq!(nodes.apply(&Event::InitDone), ["a"]);
        let found = ["a", "b", "c", "d"].map(|name| nodes.get(name));
        let missing = Some(Registration::Missing);
        assert_eq!(found, [Some(Registration::Registered), missing, missing, None]);
        // Only news is reported
        assert!(nodes.apply(&Event::Apply(csi_node("a", own()))).is_empty());
        assert_eq!(nodes.apply(&Event::Apply(csi_node("b", own()))), ["b"]);
        assert!(nodes.apply(&Event::Apply(csi_node("b", other))).is_empty());
        assert_eq!(nodes.get("b"), missing);
        nodes.apply(&Event::Delete(csi_node("a", own())));
        assert_eq!(nodes.get("a"), None);
    }
}
