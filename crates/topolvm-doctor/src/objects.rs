//! Pods, claims and the objects that they refer to.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, PodCondition};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ResourceExt as _;
use topolvm_api::{ApiFlavor, NodeCapacity};

use crate::shell::quote;

/// Returns `namespace/name`.
pub(crate) fn full_name(object: &impl kube_core::ResourceExt) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

/// Returns the first few names with commas, and the number of the others.
pub(crate) fn list_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    const SHOWN: usize = 10;
    let names: Vec<_> = names.into_iter().collect();
    let shown: Vec<_> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

/// Returns true if a container of the pod requests the resource that the webhook adds to pods. False for the pod with
/// which the controller probes kube-scheduler: that is to be refused.
pub(crate) fn has_marker(flavor: ApiFlavor, pod: &Pod) -> bool {
    if pod.annotations().contains_key(flavor.extender_probe()) {
        return false;
    }
    let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter());
    let mut resources = containers.filter_map(|container| container.resources.as_ref());
    resources.any(|resources| {
        let mut amounts = [&resources.requests, &resources.limits].into_iter().flatten();
        amounts.any(|amounts| amounts.contains_key(flavor.capacity_resource()))
    })
}

/// Returns true if the pod has ended, so that nothing is to be done about it.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_some() || phase == "Succeeded" || phase == "Failed"
}

/// Returns the node of a pod.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty())
}

/// Returns kube-scheduler's condition of a pod for which it has found no node.
pub(crate) fn unscheduled(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let is_waiting = node_of(pod).is_none() && !is_over(pod);
    conditions.iter().find(|one| is_waiting && one.type_ == "PodScheduled" && one.status == "False")
}

/// Returns the owner that recreates a pod when it is gone, as `kind/name`: the Deployment of a ReplicaSet, if it has
/// one.
pub(crate) fn owner(pod: &Pod) -> Option<String> {
    let is_controller = |owner: &&OwnerReference| owner.controller == Some(true);
    let owner = pod.metadata.owner_references.iter().flatten().find(is_controller)?;
    let hash = pod.labels().get("pod-template-hash").map(|hash| format!("-{hash}"));
    let deployment = hash.and_then(|hash| owner.name.strip_suffix(&hash).map(str::to_owned));
    Some(match (owner.kind.as_str(), deployment) {
        ("ReplicaSet", Some(deployment)) => format!("deployment/{deployment}"),
        (kind, _) => format!("{}/{}", kind.to_lowercase(), owner.name),
    })
}

/// Returns the names of pods with their owners: `shop/web-0, shop/web-1 (statefulset/web)`.
pub(crate) fn describe_pods(pods: &[&Pod]) -> String {
    let named = |pod: &&Pod| match owner(pod) {
        Some(owner) => format!("{} ({owner})", full_name(*pod)),
        None => format!("{} (no owner)", full_name(*pod)),
    };
    list_names(pods.iter().map(named))
}

/// Returns the commands that delete pods which their owner recreates, one for each namespace.
pub(crate) fn delete_owned_pods(pods: &[&Pod]) -> Vec<String> {
    let namespaces: BTreeSet<_> = pods.iter().filter_map(|pod| pod.namespace()).collect();
    let command = |namespace: String| {
        let owned = pods.iter().filter(|pod| pod.namespace().as_ref() == Some(&namespace) && owner(pod).is_some());
        let names: Vec<_> = owned.map(|pod| quote(&pod.name_any())).collect();
        (!names.is_empty()).then(|| format!("kubectl -n {} delete pod {}", quote(&namespace), names.join(" ")))
    };
    namespaces.into_iter().filter_map(command).collect()
}

/// Returns the StorageClass of a claim.
pub(crate) fn class_of<'a>(claim: &PersistentVolumeClaim, classes: &[&'a StorageClass]) -> Option<&'a StorageClass> {
    let name = claim.spec.as_ref()?.storage_class_name.as_ref()?;
    classes.iter().copied().find(|class| class.metadata.name.as_ref() == Some(name))
}

/// Returns kind, namespace and name of the source of a claim that is a copy.
pub(crate) fn source_of(claim: &PersistentVolumeClaim) -> Option<(&str, String, &str)> {
    let spec = claim.spec.as_ref()?;
    let own = claim.namespace().unwrap_or_default();
    if let Some(source) = &spec.data_source_ref {
        let namespace = source.namespace.clone().unwrap_or(own);
        return Some((&source.kind, namespace, &source.name));
    }
    spec.data_source.as_ref().map(|source| (source.kind.as_str(), own, source.name.as_str()))
}

/// Returns true if the claim has no volume yet and is not on its way out.
pub(crate) fn is_unbound(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    volume.is_empty() && claim.metadata.deletion_timestamp.is_none()
}

/// Returns true if volumes of a StorageClass wait for their pods.
pub(crate) fn waits_for_pods(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
}

/// Returns the device class that a StorageClass names; empty for the default class.
pub(crate) fn device_class(flavor: ApiFlavor, class: &StorageClass) -> &str {
    parameter(class, flavor.device_class_parameter())
}

/// Returns the lvcreate option class that a StorageClass names; empty for the options of the device class.
pub(crate) fn option_class(flavor: ApiFlavor, class: &StorageClass) -> &str {
    parameter(class, flavor.lvcreate_option_class_parameter())
}

fn parameter<'a>(class: &'a StorageClass, name: &str) -> &'a str {
    class.parameters.as_ref().and_then(|all| all.get(name)).map(String::as_str).unwrap_or_default()
}

/// Returns free bytes of the device classes that a node has, the default class under the empty name.
pub(crate) fn device_classes(flavor: ApiFlavor, node: &Node) -> Vec<(String, u64)> {
    let capacity = NodeCapacity::from_annotations(flavor, node.annotations());
    // Agents publish 0 bytes for a default class that there is not
    let default = Some("").filter(|_| !capacity.lacks_default_class());
    let classes = default.into_iter().chain(capacity.classes());
    classes.filter_map(|class| Some((class.to_owned(), capacity.free(class)?))).collect()
}
