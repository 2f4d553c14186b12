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
use topolvm_api::{ApiFlavor, NodeCapacity, NodeSelection, NodeState};
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

/// The publication of a node's capacity.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) flavor: ApiFlavor,
    pub(super) selection: NodeSelection,
    /// Name of the Node.
    pub(super) node: String,
}

impl Publication {
    /// Keeps the capacity annotations of the Node up to date, and our finalizer on it. Ends when one of the two senders
    /// is gone.
    ///
    /// A patch is computed against the Node as the watch shows it. If that is older than our own last write, its event
    /// is still to come, and the loop runs again.
    pub(super) async fn keep_annotated(
        self,
        api: Api<Node>,
        mut capacities: watch::Receiver<Option<NodeCapacity>>,
        mut nodes: watch::Receiver<Option<NodeMetadata>>,
        mut backoff: Backoff,
    ) {
        loop {
            let capacity = capacities.borrow_and_update().clone();
            let node = nodes.borrow_and_update().clone();
            let written = match (capacity, node) {
                (Some(capacity), Some(node)) => self.patch_node(&api, &capacity, &node).await,
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
                    let (node, error) = (&self.node, error_chain(&error));
                    tracing::warn!(node, error, "cannot publish the capacity of the node; retrying");
                    Some(backoff.fail())
                }
            };
            if wait_for_change(&mut capacities, &mut nodes, pause).await.is_err() {
                return;
            }
        }
    }

    /// Writes what differs between the capacity and the Node. Returns whether anything did.
    async fn patch_node(
        &self,
        api: &Api<Node>,
        capacity: &NodeCapacity,
        node: &NodeMetadata,
    ) -> Result<bool, PatchError> {
        let name = &self.node;
        let Some(node_patch) = NodePatch::new(self.flavor, &self.selection, capacity, node) else {
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
                .map_err(failed("update the annotations"))?;
            tracing::debug!(node = name, ?capacity, "published the capacity of the node");
        }
        Ok(true)
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

/// Patches that a Node needs.
#[derive(Debug, PartialEq, Eq)]
struct NodePatch {
    /// Operations of a JSON patch.
    finalizer: Vec<PatchOperation>,
    /// A merge patch.
    annotations: Option<Value>,
}

impl NodePatch {
    /// Computes the patches; `None` if nothing is to be written. Skips a Node that is being deleted: the API server
    /// would refuse a new finalizer, and no pod should be scheduled onto it. Also skips a Node that has neither a
    /// selecting label nor volumes: the controller removes the annotations that this agent has written before.
    fn new(flavor: ApiFlavor, selection: &NodeSelection, capacity: &NodeCapacity, node: &NodeMetadata) -> Option<Self> {
        let state = selection.state(node.metadata.labels.as_ref());
        if node.metadata.deletion_timestamp.is_some() || state == NodeState::Excluded {
            return None;
        }
        let node_patch = Self {
            finalizer: add_finalizer(&node.metadata, flavor.node_finalizer()),
            annotations: annotations_patch(flavor, state, capacity, node),
        };
        (!node_patch.finalizer.is_empty() || node_patch.annotations.is_some()).then_some(node_patch)
    }
}

/// Returns a merge patch of the annotations that differ. Those of classes that are gone are removed, or the scheduler
/// would go on using them. A node that takes no volumes has no free bytes.
fn annotations_patch(
    flavor: ApiFlavor,
    state: NodeState,
    capacity: &NodeCapacity,
    node: &NodeMetadata,
) -> Option<Value> {
    let empty = BTreeMap::new();
    let present = node.metadata.annotations.as_ref().unwrap_or(&empty);
    let mut wanted = capacity.to_annotations(flavor);
    if state != NodeState::Selected {
        wanted.retain(|key, _| key.starts_with(flavor.capacity_prefix()));
        for bytes in wanted.values_mut() {
            "0".clone_into(bytes);
        }
    }
    let changed = wanted
        .iter()
        .filter(|(key, value)| present.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    let gone = present
        .keys()
        .filter(|key| flavor.is_capacity_annotation(key) && !wanted.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let patch: serde_json::Map<_, _> = changed.chain(gone).collect();
    (!patch.is_empty()).then(|| json!({"metadata": {"annotations": patch}}))
}

#[cfg(test)]
mod tests {
    use topolvm_api::LayoutCapacity;
    use topolvm_testkit::ApiServer;

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    fn node(metadata: &Value) -> NodeMetadata {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).unwrap()
    }

    fn new_patch(capacity: &NodeCapacity, node: &NodeMetadata) -> Option<NodePatch> {
        NodePatch::new(FLAVOR, &NodeSelection::default(), capacity, node)
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
    async fn capacity_burst_is_a_few_patches_and_the_last_is_current() {
        let api = ApiServer::new();
        let metadata = json!({"name": "n1", "finalizers": ["topolvm.io/node"]});
        api.apply_json(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}));
        let (capacities, changed) = watch::channel(None);
        let (nodes, node_changed) = watch::channel(Some(node(&metadata)));
        let backoff = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
        let publication = Publication { flavor: FLAVOR, selection: NodeSelection::default(), node: "n1".to_owned() };
        let keeping = publication.keep_annotated(Api::all(api.client()), changed, node_changed, backoff);
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
        let node_patch =
            new_patch(&capacity(&[("", 5), ("ssd", 7)]), &node(&json!({"name": "n1", "resourceVersion": "3"})));
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
    fn capacity_patch_has_changed_and_removed_annotations_only() {
        let node = node(&json!({
            "name": "n1", "resourceVersion": "3", "finalizers": ["other/one", "topolvm.io/node"],
            "annotations": {
                "capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "7", "capacity.topolvm.io/old": "1",
                "capacity.topolvm.cybozu.com/old": "1", "note": "keep",
            },
        }));
        let node_patch = new_patch(&capacity(&[("", 5), ("ssd", 8)]), &node);
        let expected = NodePatch {
            finalizer: Vec::new(),
            annotations: Some(json!({"metadata": {"annotations": {
                "capacity.topolvm.io/ssd": "8", "capacity.topolvm.io/old": null,
            }}})),
        };
        assert_eq!(node_patch, Some(expected));
    }

    #[test]
    fn capacity_patch_sets_and_removes_option_class_capacity() {
        let mut with_options = capacity(&[("", 5)]);
        for (name, free, images) in [("", 5, 1), ("mirrored", 2, 2)] {
            with_options.set_layout("", name, LayoutCapacity { free, stripes: 1, images });
        }
        let bare = json!({"name": "n1", "finalizers": ["topolvm.io/node"], "annotations": {"note": "keep"}});
        let patch = new_patch(&with_options, &node(&bare)).unwrap().annotations.unwrap();
        let expected =
            r#"{"00default":{"":{"free":5,"stripes":1,"images":1},"mirrored":{"free":2,"stripes":1,"images":2}}}"#;
        let annotations = json!({
            "capacity.topolvm.io/00default": "5", "topolvm.io/lvcreate-option-class-capacity": expected,
        });
        assert_eq!(patch, json!({"metadata": {"annotations": annotations}}));

        let written = json!({"name": "n1", "finalizers": ["topolvm.io/node"], "annotations": annotations});
        assert_eq!(new_patch(&with_options, &node(&written)), None);
        let patch = new_patch(&capacity(&[("", 5)]), &node(&written)).unwrap().annotations;
        let gone = json!({"topolvm.io/lvcreate-option-class-capacity": null});
        assert_eq!(patch, Some(json!({"metadata": {"annotations": gone}})));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let node = node(&json!({
            "name": "n1", "finalizers": ["topolvm.io/node"], "annotations": {"capacity.topolvm.io/00default": "5"},
        }));
        assert_eq!(new_patch(&capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn a_node_that_is_being_deleted_is_left_alone() {
        let node = node(&json!({"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(new_patch(&capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn foreign_finalizer_is_kept() {
        let node = node(&json!({"name": "n1", "resourceVersion": "9", "finalizers": ["other/one"]}));
        assert_eq!(
            new_patch(&capacity(&[]), &node).unwrap().finalizer,
            operations(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "9"},
                {"op": "add", "path": "/metadata/finalizers/-", "value": "topolvm.io/node"},
            ]))
        );
    }

    #[test]
    fn node_that_lost_its_label_publishes_zero_while_it_has_volumes() {
        let selection: NodeSelection = "topolvm.io/storage=enabled".parse().unwrap();
        let mut with_options = capacity(&[("", 5), ("ssd", 7)]);
        for (name, free) in [("", 5), ("mirrored", 2)] {
            with_options.set_layout("", name, LayoutCapacity { free, stripes: 1, images: 1 });
        }
        let patch = |labels: &Value, annotations: &Value| {
            let node = node(&json!({
                "name": "n1", "finalizers": ["topolvm.io/node"], "labels": labels, "annotations": annotations,
            }));
            NodePatch::new(FLAVOR, &selection, &with_options, &node).and_then(|patch| patch.annotations)
        };
        let before = json!({"capacity.topolvm.io/ssd": "7", "topolvm.io/lvcreate-option-class-capacity": "{}"});
        let none = json!({"metadata": {"annotations": {
            "capacity.topolvm.io/00default": "0", "capacity.topolvm.io/ssd": "0",
            "topolvm.io/lvcreate-option-class-capacity": null,
        }}});
        assert_eq!(patch(&json!({"topolvm.io/has-volumes": "true"}), &before), Some(none));
        assert_eq!(patch(&json!({}), &before), None);
        let selected = patch(&json!({"topolvm.io/storage": "enabled"}), &before).unwrap();
        assert_eq!(selected["metadata"]["annotations"]["capacity.topolvm.io/00default"], "5");
    }
}
