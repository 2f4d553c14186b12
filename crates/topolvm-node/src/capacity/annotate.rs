//! Writes the capacity to the own Node object.

use std::collections::BTreeMap;

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, NodeCapacity};
use topolvm_kube::{add_finalizer, json_patch};
use topolvm_runtime::error_chain;

type NodeMetadata = PartialObjectMeta<Node>;

/// Why a Node could not be patched.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot {action} of the Node")]
    Kube { action: &'static str, source: Box<kube::Error> },
}

/// Keeps the Node's annotations at the capacity, and our finalizer on it. Goes on until one of the two senders is gone.
///
/// What is written is computed against the Node as the watch shows it. Should that be older than our own last write, its
/// event is still to come, and this loop then looks again.
pub(super) async fn keep_annotated(
    api: Api<Node>,
    flavor: ApiFlavor,
    name: String,
    mut capacities: watch::Receiver<Option<NodeCapacity>>,
    mut nodes: watch::Receiver<Option<NodeMetadata>>,
) {
    let mut backoff = super::RETRY;
    loop {
        let capacity = capacities.borrow_and_update().clone();
        let node = nodes.borrow_and_update().clone();
        let written = match (capacity, node) {
            (Some(capacity), Some(node)) => write(&api, flavor, &name, &capacity, &node).await,
            (None, _) | (_, None) => Ok(()),
        };
        let pause = match written {
            Ok(()) => {
                backoff.reset();
                None
            }
            Err(error) => {
                tracing::warn!(
                    node = name,
                    error = error_chain(&error),
                    "cannot publish the node's capacity; trying again"
                );
                Some(backoff.fail())
            }
        };
        let retry = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let is_over = tokio::select! {
            changed = capacities.changed() => changed.is_err(),
            changed = nodes.changed() => changed.is_err(),
            () = retry => false,
        };
        if is_over {
            return;
        }
    }
}

async fn write(
    api: &Api<Node>,
    flavor: ApiFlavor,
    name: &str,
    capacity: &NodeCapacity,
    node: &NodeMetadata,
) -> Result<(), Error> {
    let Some(plan) = Plan::new(flavor, capacity, node) else {
        return Ok(());
    };
    let failed = |action| move |source| Error::Kube { action, source: Box::new(source) };
    if !plan.finalizer.is_empty() {
        let patch = json_patch(plan.finalizer);
        api.patch_metadata(name, &PatchParams::default(), &patch).await.map_err(failed("add the finalizer"))?;
    }
    if let Some(annotations) = plan.annotations {
        api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(annotations))
            .await
            .map_err(failed("change the annotations"))?;
        tracing::debug!(node = name, ?capacity, "published the node's capacity");
    }
    Ok(())
}

/// What must be written.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// Operations of a JSON patch.
    finalizer: Vec<PatchOperation>,
    /// A merge patch.
    annotations: Option<Value>,
}

impl Plan {
    /// `None` where nothing is to be done. A Node that is being deleted is left alone: a new finalizer would be refused,
    /// and nobody should schedule onto it.
    fn new(flavor: ApiFlavor, capacity: &NodeCapacity, node: &NodeMetadata) -> Option<Self> {
        if node.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let plan = Self {
            finalizer: add_finalizer(&node.metadata, flavor.node_finalizer()),
            annotations: annotations(flavor, capacity, node),
        };
        (!plan.finalizer.is_empty() || plan.annotations.is_some()).then_some(plan)
    }
}

/// Only what differs. The annotations of classes that are gone are taken away, or the scheduler would go on using them.
fn annotations(flavor: ApiFlavor, capacity: &NodeCapacity, node: &NodeMetadata) -> Option<Value> {
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

    #[test]
    fn a_fresh_node_gets_all_annotations_and_the_finalizer() {
        let plan =
            Plan::new(FLAVOR, &capacity(&[("", 5), ("ssd", 7)]), &node(&json!({"name": "n1", "resourceVersion": "3"})));
        let expected = Plan {
            finalizer: operations(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "3"},
                {"op": "add", "path": "/metadata/finalizers", "value": ["topolvm.io/node"]},
            ])),
            annotations: Some(json!({"metadata": {"annotations": {
                "capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "7",
            }}})),
        };
        assert_eq!(plan, Some(expected));
    }

    #[test]
    fn only_what_changed_is_written_and_vanished_classes_are_taken_away() {
        let node = node(&json!({
            "name": "n1", "resourceVersion": "3", "finalizers": ["other/one", "topolvm.io/node"],
            "annotations": {
                "capacity.topolvm.io/00default": "5", "capacity.topolvm.io/ssd": "7", "capacity.topolvm.io/old": "1",
                "capacity.topolvm.cybozu.com/old": "1", "note": "keep",
            },
        }));
        let plan = Plan::new(FLAVOR, &capacity(&[("", 5), ("ssd", 8)]), &node);
        let expected = Plan {
            finalizer: Vec::new(),
            annotations: Some(json!({"metadata": {"annotations": {
                "capacity.topolvm.io/ssd": "8", "capacity.topolvm.io/old": null,
            }}})),
        };
        assert_eq!(plan, Some(expected));
    }

    #[test]
    fn nothing_is_written_when_nothing_changed() {
        let node = node(&json!({
            "name": "n1", "finalizers": ["topolvm.io/node"], "annotations": {"capacity.topolvm.io/00default": "5"},
        }));
        assert_eq!(Plan::new(FLAVOR, &capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn a_node_on_its_way_out_is_left_alone() {
        let node = node(&json!({"name": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(Plan::new(FLAVOR, &capacity(&[("", 5)]), &node), None);
    }

    #[test]
    fn a_finalizer_of_somebody_else_is_kept() {
        let node = node(&json!({"name": "n1", "resourceVersion": "9", "finalizers": ["other/one"]}));
        assert_eq!(
            Plan::new(FLAVOR, &capacity(&[]), &node).unwrap().finalizer,
            operations(json!([
                {"op": "test", "path": "/metadata/resourceVersion", "value": "9"},
                {"op": "add", "path": "/metadata/finalizers/-", "value": "topolvm.io/node"},
            ]))
        );
    }
}
