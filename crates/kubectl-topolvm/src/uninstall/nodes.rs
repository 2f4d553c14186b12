//! Removes finalizer, capacity annotations and topology label from Nodes.

use std::time::Duration;

use json_patch::Patch as JsonPatch;
use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, HAS_VOLUMES_LABEL};

use crate::install::InstallError;
use crate::install::apply::wait_until;
use crate::install::print_progress;
use crate::request::{self, RequestError};

/// Timeout for kubelet to deregister the driver, whose socket has gone.
const DEREGISTRATION_TIMEOUT: Duration = Duration::from_mins(1);
/// Attempts to patch a Node that somebody else changes at the same time.
const ATTEMPTS: usize = 5;

/// Removes finalizer, capacity annotations and label from all Nodes, after kubelet has deregistered the driver.
pub(super) async fn clean(client: &Client, flavor: ApiFlavor, limit: Duration) -> Result<(), InstallError> {
    let csi_nodes = Api::<CSINode>::all(client.clone());
    for csi_node in request::list_all::<CSINode>(client).await?.iter().filter(|node| has_driver(node, flavor)) {
        let name = csi_node.name_any();
        let is_gone = |node: Option<&CSINode>| node.is_none_or(|node| !has_driver(node, flavor));
        let what = format!("kubelet of node {name} to forget the driver {flavor}");
        match wait_until(csi_nodes.clone(), &name, is_gone, limit.min(DEREGISTRATION_TIMEOUT), what).await {
            // A node that is down; kubelet forgets it with the CSINode when it comes up
            Err(InstallError::Slow { what, seconds }) => {
                print_progress(&format!("waited {seconds} s for {what}, and go on"));
            }
            other => drop(other?),
        }
    }
    let nodes = Api::<Node>::all(client.clone());
    for node in request::list_all::<Node>(client).await? {
        clean_one(&nodes, node, flavor).await?;
    }
    Ok(())
}

fn has_driver(node: &CSINode, flavor: ApiFlavor) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == flavor.driver_name())
}

async fn clean_one(nodes: &Api<Node>, mut node: Node, flavor: ApiFlavor) -> Result<(), InstallError> {
    let name = node.name_any();
    for _ in 0..ATTEMPTS {
        let operations = operations(&node, flavor);
        if operations.is_empty() {
            return Ok(());
        }
        let patch: JsonPatch = serde_json::from_value(Value::Array(operations)).map_err(InstallError::Object)?;
        match nodes.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            Ok(_) => return Ok(()),
            // A test of the patch has failed
            Err(kube::Error::Api(status)) if status.is_invalid() => {}
            Err(error) => return Err(RequestError::new("patch", "nodes".to_owned(), error).into()),
        }
        match request::get(nodes, &name).await? {
            Some(found) => node = found,
            None => return Ok(()),
        }
    }
    print_progress(&format!("node {name} changes all the time: finalizer and annotations of {flavor} stay on it"));
    Ok(())
}

/// Returns a JSON patch that tests the values that it removes.
fn operations(node: &Node, flavor: ApiFlavor) -> Vec<Value> {
    let mut operations = Vec::new();
    let mut remove = |of: &str, key: &str, value: &str| {
        let path = PointerBuf::from_tokens(["metadata", of, key]);
        operations.push(json!({ "op": "test", "path": path, "value": value }));
        operations.push(json!({ "op": "remove", "path": path }));
    };
    if let Some(index) = node.finalizers().iter().position(|finalizer| finalizer == flavor.node_finalizer()) {
        remove("finalizers", &index.to_string(), flavor.node_finalizer());
    }
    for (key, value) in node.annotations().iter().filter(|(key, _)| flavor.is_capacity_annotation(key)) {
        remove("annotations", key, value);
    }
    // kubelet makes the first when the driver is registered, and leaves it; the other is the controller's
    for key in [flavor.topology_key(), HAS_VOLUMES_LABEL.0] {
        if let Some(value) = node.labels().get(key) {
            remove("labels", key, value);
        }
    }
    operations
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    #[test]
    fn what_the_product_wrote_is_taken_off_and_nothing_else() {
        let node: Node = from_value(json!({"metadata": {
            "name": "n",
            "finalizers": ["other.io/x", "topolvm.io/node"],
            "annotations": {
                "capacity.topolvm.io/ssd": "1", "topolvm.io/lvcreate-option-class-capacity": "{}",
                "capacity.topolvm.cybozu.com/ssd": "2", "a": "b",
            },
            "labels": {
                "topology.topolvm.io/node": "n", "topolvm.io/has-volumes": "true", "kubernetes.io/os": "linux",
            },
        }}))
        .unwrap();
        let mut object = serde_json::to_value(&node).unwrap();
        let patch: JsonPatch = from_value(Value::Array(operations(&node, ApiFlavor::TopoLvm))).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        let expected = json!({
            "name": "n", "finalizers": ["other.io/x"],
            "annotations": {"capacity.topolvm.cybozu.com/ssd": "2", "a": "b"}, "labels": {"kubernetes.io/os": "linux"},
        });
        assert_eq!(object["metadata"], expected);
        assert!(operations(&from_value(object).unwrap(), ApiFlavor::TopoLvm).is_empty());
    }
}
