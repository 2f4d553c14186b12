//! Removes finalizer, annotations, extended resources and labels of the product from Nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use cli_runtime::request::{self, RequestError};
use json_patch::Patch as JsonPatch;
use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, HAS_VOLUMES_LABEL};

use crate::install::InstallError;
use crate::install::apply::wait_until;
use crate::install::print_progress;

/// Timeout for kubelet to deregister the driver, whose socket has gone.
const DEREGISTRATION_TIMEOUT: Duration = Duration::from_mins(1);
/// Attempts to patch a Node that another client changes at the same time.
const ATTEMPTS: usize = 5;

/// Removes what the product wrote from all Nodes, after kubelet has deregistered the driver; also what is left of the
/// other API group, unless that is installed.
pub(super) async fn clean(client: &Client, flavor: ApiFlavor, limit: Duration) -> Result<(), InstallError> {
    let csi_nodes = Api::<CSINode>::all(client.clone());
    for csi_node in request::list_all::<CSINode>(client).await?.iter().filter(|node| has_driver(node, flavor)) {
        let name = csi_node.name_any();
        let is_gone = |node: Option<&CSINode>| node.is_none_or(|node| !has_driver(node, flavor));
        let what = format!("the kubelet of node {name} to unregister the driver {flavor}");
        match wait_until(csi_nodes.clone(), &name, is_gone, limit.min(DEREGISTRATION_TIMEOUT), what).await {
            // A node that is down; kubelet forgets it with the CSINode when it comes up
            Err(InstallError::Slow { what, seconds }) => {
                print_progress(&format!("waited {seconds} s for {what}; continuing"));
            }
            other => drop(other?),
        }
    }
    let nodes = Api::<Node>::all(client.clone());
    let mut flavors = vec![flavor];
    let other = if flavor == ApiFlavor::TopoLvm { ApiFlavor::Legacy } else { ApiFlavor::TopoLvm };
    if request::get(&Api::<CSIDriver>::all(client.clone()), other.driver_name()).await?.is_none() {
        flavors.push(other);
    }
    for node in request::list_all::<Node>(client).await? {
        for flavor in &flavors {
            remove_resources(&nodes, &node, *flavor).await?;
        }
        clean_one(&nodes, node, &flavors).await?;
    }
    Ok(())
}

/// Removes extended resources with the size and the free space of device classes.
async fn remove_resources(nodes: &Api<Node>, node: &Node, flavor: ApiFlavor) -> Result<(), InstallError> {
    let Some(patch) = resources_patch(node, flavor) else { return Ok(()) };
    let patched = nodes.patch_status(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map_err(|error| RequestError::new("patch", "nodes/status".to_owned(), error))?;
    Ok(())
}

/// Returns the merge patch of the status without these resources; none where there are none.
fn resources_patch(node: &Node, flavor: ApiFlavor) -> Option<Value> {
    let status = node.status.as_ref()?;
    let prefixes = [flavor.size_resource_prefix(), flavor.free_resource_prefix()];
    let nulls = |list: Option<&BTreeMap<String, Quantity>>| -> serde_json::Map<String, Value> {
        let ours = list.into_iter().flatten().map(|(name, _)| name);
        let ours = ours.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        ours.map(|name| (name.clone(), Value::Null)).collect()
    };
    let (capacity, allocatable) = (nulls(status.capacity.as_ref()), nulls(status.allocatable.as_ref()));
    let is_empty = capacity.is_empty() && allocatable.is_empty();
    (!is_empty).then(|| json!({ "status": { "capacity": capacity, "allocatable": allocatable } }))
}

fn has_driver(node: &CSINode, flavor: ApiFlavor) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == flavor.driver_name())
}

async fn clean_one(nodes: &Api<Node>, mut node: Node, flavors: &[ApiFlavor]) -> Result<(), InstallError> {
    let name = node.name_any();
    for _ in 0..ATTEMPTS {
        let operations = operations(&node, flavors);
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
    print_progress(&format!("node {name} changes constantly: its finalizer and annotations were not removed"));
    Ok(())
}

/// Returns a JSON patch that tests the values that it removes.
fn operations(node: &Node, flavors: &[ApiFlavor]) -> Vec<Value> {
    let mut operations = Vec::new();
    let mut remove = |of: &str, key: &str, value: &str| {
        let path = PointerBuf::from_tokens(["metadata", of, key]);
        operations.push(json!({ "op": "test", "path": path, "value": value }));
        operations.push(json!({ "op": "remove", "path": path }));
    };
    // From the last one, so that the places of the others stay
    for (index, finalizer) in node.finalizers().iter().enumerate().rev() {
        if flavors.iter().any(|flavor| finalizer == flavor.node_finalizer()) {
            remove("finalizers", &index.to_string(), finalizer);
        }
    }
    for (key, value) in node.annotations() {
        let is_of = |flavor: &ApiFlavor| {
            flavor.is_capacity_annotation(key) || [flavor.orphans(), flavor.volumes_until()].contains(&key.as_str())
        };
        if flavors.iter().any(is_of) {
            remove("annotations", key, value);
        }
    }
    // kubelet makes the first ones when the driver is registered, and leaves them; the other is the controller's
    let labels = flavors.iter().map(|flavor| flavor.topology_key()).chain([HAS_VOLUMES_LABEL.0]);
    for key in labels {
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
    fn node_loses_what_the_product_wrote_and_nothing_else() {
        let node: Node = from_value(json!({"metadata": {
            "name": "n",
            "finalizers": ["topolvm.cybozu.com/node", "other.io/x", "topolvm.io/node"],
            "annotations": {
                "capacity.topolvm.io/ssd": "1", "topolvm.io/lvcreate-option-class-capacity": "{}",
                "topolvm.io/orphans": "{}", "topolvm.io/volumes-until": "t", "capacity.topolvm.cybozu.com/ssd": "2",
                "a": "b",
            },
            "labels": {
                "topology.topolvm.io/node": "n", "topology.topolvm.cybozu.com/node": "n",
                "topolvm.io/has-volumes": "true", "kubernetes.io/os": "linux",
            },
        }}))
        .unwrap();
        let cleaned = |flavors: &[ApiFlavor]| {
            let mut object = serde_json::to_value(&node).unwrap();
            let patch: JsonPatch = from_value(Value::Array(operations(&node, flavors))).unwrap();
            json_patch::patch(&mut object, &patch).unwrap();
            assert!(operations(&from_value(object.clone()).unwrap(), flavors).is_empty());
            object["metadata"].clone()
        };
        let expected = json!({
            "name": "n", "finalizers": ["topolvm.cybozu.com/node", "other.io/x"],
            "annotations": {"capacity.topolvm.cybozu.com/ssd": "2", "a": "b"},
            "labels": {"topology.topolvm.cybozu.com/node": "n", "kubernetes.io/os": "linux"},
        });
        assert_eq!(cleaned(&[ApiFlavor::TopoLvm]), expected);
        let expected = json!({
            "name": "n", "finalizers": ["other.io/x"], "annotations": {"a": "b"},
            "labels": {"kubernetes.io/os": "linux"},
        });
        assert_eq!(cleaned(&[ApiFlavor::TopoLvm, ApiFlavor::Legacy]), expected);
    }

    #[test]
    fn node_loses_the_extended_resources_of_device_classes() {
        let node: Node = from_value(json!({"metadata": {"name": "n"}, "status": {
            "capacity": {"size.topolvm.io/ssd": "9", "free.topolvm.io/ssd": "5", "cpu": "2"},
            "allocatable": {"size.topolvm.io/ssd": "9", "free.topolvm.io/ssd": "5", "cpu": "2"},
        }}))
        .unwrap();
        let nulls = json!({"size.topolvm.io/ssd": null, "free.topolvm.io/ssd": null});
        let expected = json!({"status": {"capacity": nulls, "allocatable": nulls}});
        assert_eq!(resources_patch(&node, ApiFlavor::TopoLvm), Some(expected));
        assert_eq!(resources_patch(&node, ApiFlavor::Legacy), None);
    }
}
