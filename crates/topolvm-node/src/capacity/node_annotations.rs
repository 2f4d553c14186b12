//! Writes the capacity to annotations of the Node object.

use std::collections::BTreeMap;
use std::time::Duration;

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use topolvm_api::{ApiFlavor, NodeCapacity};
use topolvm_kube::{add_finalizer, json_patch};
use topolvm_runtime::{Backoff, error_chain};

type NodeMetadata = PartialObjectMeta<Node>;

/// Shortest time between two writes. Each volume of a burst changes the capacity, and each write is sent to everybody
/// who watches Nodes: the first change is written at once, those that follow together.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// Error of patching the Node.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} of the Node")]
struct PatchError {
    action: &'static str,
    source: kube::Error,
}

/// Keeps the capacity annotations of the Node up to date, and our finalizer on it. Ends when one of the two senders
/// is gone.
///
/// A patch is computed against the Node as the watch shows it. If that is older than our own last write, its event is
/// still to come, and the loop runs again.
pub(super) async fn keep_annotated(
    api: Api<Node>,
    flavor: ApiFlavor,
    name: String,
    mut capacities: watch::Receiver<Option<NodeCapacity>>,
    mut nodes: watch::Receiver<Option<NodeMetadata>>,
    mut backoff: Backoff,
) {
    loop {
        let capacity = capacities.borrow_and_update().clone();
        let node = nodes.borrow_and_update().clone();
        let written = match (capacity, node) {
            (Some(capacity), Some(node)) => patch_node(&api, flavor, &name, &capacity, &node).await,
            (None, _) | (_, None) => Ok(false),
        };
        let pause = match written {
            Ok(is_written) => {
                backoff.reset();
                if is_written {
                    tokio::time::sleep(WRITE_INTERVAL).await;
                }
                None
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(node = name, error, "cannot publish the node's capacity; trying again");
                Some(backoff.fail())
            }
        };
        if wait_for_change(&mut capacities, &mut nodes, pause).await.is_err() {
            return;
        }
    }
}

/// Waits until the capacity or the Node changes, or for `pause`. An error if one of the two senders is gone.
async fn wait_for_change(
    capacities: &mut watch::Receiver<Option<NodeCapacity>>,
    nodes: &mut watch::Receiver<Option<NodeMetadata>>,
    pause: Option<Duration>,
) -> Result<(), RecvError> {
    let retry = async {
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = capacities.changed() => changed,
        changed = nodes.changed() => changed,
        () = retry => Ok(()),
    }
}

/// Writes what differs between the capacity and the Node. Returns whether anything did.
async fn patch_node(
    api: &Api<Node>,
    flavor: ApiFlavor,
    name: &str,
    capacity: &NodeCapacity,
    node: &NodeMetadata,
) -> Result<bool, PatchError> {
    let Some(node_patch) = NodePatch::new(flavor, capacity, node) else {
        return Ok(false);
    };
    let failed = |action| move |source| PatchError { action, source };
    if !node_patch.finalizer.is_empty() {
        let patch = json_patch(node_patch.finalizer);
        api.patch_metadata(name, &PatchParams::default(), &patch).await.map_err(failed("add the finalizer"))?;
    }
    if let Some(annotations) = node_patch.annotations {
        api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(annotations))
            .await
            .map_err(failed("change the annotations"))?;
        tracing::debug!(node = name, ?capacity, "published the node's capacity");
    }
    Ok(true)
}

/// Patches that a Node needs.
#[derive(Debug, PartialEq, Eq)]
struct NodePatch {
    /// Operations of a JSON patch.
    finalizer: Vec<PatchOperation>,
    /// A merge patch.
    annotations: Option<Value>,
}

impl NodePatch {
    /// Computes the patches; `None` if nothing is to be written. A Node that is being deleted is left alone: a new
    /// finalizer would be refused, and nobody should schedule onto it.
    fn new(flavor: ApiFlavor, capacity: &NodeCapacity, node: &NodeMetadata) -> Option<Self> {
        if node.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let node_patch = Self {
            finalizer: add_finalizer(&node.metadata, flavor.node_finalizer()),
            annotations: annotations_patch(flavor, capacity, node),
        };
        (!node_patch.finalizer.is_empty() || node_patch.annotations.is_some()).then_some(node_patch)
    }
}

/// Returns a merge patch of the annotations that differ. Those of classes that are gone are removed, or the scheduler
/// would go on using them.
fn annotations_patch(flavor: ApiFlavor, capacity: &NodeCapacity, node: &NodeMetadata) -> Option<Value> {
    let empty = BTreeMap::new();
    let present = node.metadata.annotations.as_ref().unwrap_or(&empty);
    let wanted = capacity.to_annotations(flavor);
    let changed = wanted
        .iter()
        .filter(|(key, value)| present.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    let gone = present
        .keys()
        .filter(|key| key.starts_with(flavor.capacity_prefix()) && !wanted.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let patch: serde_json::Map<_, _> = changed.chain(gone).collect();
    (!patch.is_empty()).then(|| json!({"metadata": {"annotations": patch}}))
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::ApiServer;

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    fn node(metadata: &Value) -> NodeMetadata {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).unwrap()
    }

    fn operations(patch: Value) -> Vec<PatchOperation> {
        serde_json::from_value(patch).unwrap()
    }

    fn capacity(classes: &[(&str, u64)]) -> NodeCapacity {
        let mut capacity = NodeCapacity::default();
        for &(class, free) in classes {
            capacity.set(class, free);
        }
        capacity
    }

    /// As many volumes as a node makes in a second.
    #[tokio::test(start_paused = true)]
    async fn a_burst_of_changes_is_a_few_writes_of_which_the_last_is_current() {
        let api = ApiServer::new();
        let metadata = json!({"name": "n1", "finalizers": ["topolvm.io/node"]});
        api.apply_json(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
        let (capacities, changed) = watch::channel(None);
        let (nodes, node_changed) = watch::channel(Some(node(&metadata)));
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
        let keeping = keep_annotated(Api::all(api.client()), FLAVOR, "n1".into(), changed, node_changed, backoff);
        let burst = async {
            for free in 1..=20 {
                capacities.send_replace(Some(capacity(&[("ssd", free)])));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            api.until("nodes", "", "n1", |node| {
                (node?.pointer("/metadata/annotations/capacity.topolvm.io~1ssd")? == "20").then_some(())
            })
            .await;
            drop((capacities, nodes));
        };
        tokio::join!(keeping, burst);
        assert_eq!(api.count("patch", "nodes"), 5);
    }

    #[test]
    fn a_fresh_node_gets_all_annotations_and_the_finalizer() {
        let node_patch = NodePatch::new(
            FLAVOR,
            &capacity(&[("", 5), ("ssd", 7)]),
            &node(&json!({"name": "n1", "resourceVersion": "3"})),
        );
        let expected = NodePatch {
            finalizer: operations(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "3"},
                {"op": "add", "path": "/metadata/finalizers", "value": ["topolvm.io/node"]},
            ])),
            annotations: Some(json!({"metadata": {"annotations": {
                "capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "7",
            }}})),
        };
        assert_eq!(node_patch, Some(expected));
    }

    #[test]
    fn only_changed_annotations_are_written_and_those_of_vanished_classes_removed() {
        let node = node(&json!({
            "name": "n1", "resourceVersion": "3", "finalizers": ["other/one", "topolvm.io/node"],
            "annotations": {
                "capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "7", "capacity.topolvm.io/old": "1",
                "capacity.topolvm.cybozu.com/old": "1", "note": "keep",
            },
        }));
        let node_patch = NodePatch::new(FLAVOR, &capacity(&[("", 5), ("ssd", 8)]), &node);
        let expected = NodePatch {
            finalizer: Vec::new(),
            annotations: Some(json!({"metadata": {"annotations": {
                "capacity.topolvm.io/ssd": "8", "capacity.topolvm.io/old": null,
            }}})),
        };
        assert_eq!(node_patch, Some(expected));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let node = node(&json!({
            "name": "n1", "finalizers": ["topolvm.io/node"], "annotations": {"capacity.topolvm.io/00default": "5"},
        }));
        assert_eq!(NodePatch::new(FLAVOR, &capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn a_node_that_is_being_deleted_is_left_alone() {
        let node = node(&json!({"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(NodePatch::new(FLAVOR, &capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn a_finalizer_of_somebody_else_is_kept() {
        let node = node(&json!({"name": "n1", "resourceVersion": "9", "finalizers": ["other/one"]}));
        assert_eq!(
            NodePatch::new(FLAVOR, &capacity(&[]), &node).unwrap().finalizer,
            operations(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "9"},
                {"op": "add", "path": "/metadata/finalizers/-", "value": "topolvm.io/node"},
            ]))
        );
    }
}
