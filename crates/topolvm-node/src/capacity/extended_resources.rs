//! Publishes size and free space of device classes as extended resources in the status of the Node, for tools that read
//! them there. Schedulers do not use them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use lvmd_client::DeviceClasses;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY, NodeSelection, NodeState, parse_bytes};
use topolvm_kube::watch_one;
use topolvm_runtime::{Backoff, CancellationToken, Tasks, error_chain};

use super::until;

/// Shortest time between two writes, each of which is sent to everybody who watches Nodes.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Resources by name, with their bytes.
type Resources = BTreeMap<String, u64>;

/// Extended resources of a Node, one with the size and one with the free space of each device class, in bytes.
#[derive(Debug)]
pub(super) struct ExtendedResources {
    flavor: ApiFlavor,
    selection: NodeSelection,
    /// Name of the Node.
    node: String,
}

/// State of a Node, and the resources of ours in its status.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    state: NodeState,
    capacity: Resources,
    allocatable: Resources,
}

impl ExtendedResources {
    /// Makes the resources of a Node.
    pub(super) fn new(flavor: ApiFlavor, selection: NodeSelection, node: String) -> Self {
        Self { flavor, selection, node }
    }

    /// Starts the tasks that keep the resources equal to `classes`. The Node is watched with its status: the kubelet
    /// sets extended resources to zero when a machine comes back without the records of its device plugins.
    pub(super) fn start(
        self,
        api: Api<Node>,
        classes: watch::Receiver<DeviceClasses>,
        backoff: Backoff,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        let (sender, shown) = watch::channel(None);
        let (flavor, selection, name) = (self.flavor, self.selection.clone(), self.node.clone());
        let (watched, until_shutdown) = (api.clone(), shutdown.clone());
        tasks.spawn("resources of the Node", async move {
            watch_one("resources of the Node", watched, &name, until_shutdown, |event| {
                let seen = match event {
                    Event::InitApply(node) | Event::Apply(node) => Shown::of(flavor, &selection, &node),
                    Event::Delete(_) => None,
                    Event::Init | Event::InitDone => return,
                };
                // kubelet writes its heartbeat there, too
                sender.send_if_modified(|shown| std::mem::replace(shown, seen) != *shown);
            })
            .await
        });
        tasks.spawn("extended resources", until(shutdown.clone(), self.keep_shown(api, classes, shown, backoff)));
    }

    /// Writes what differs, until one of the senders is gone.
    async fn keep_shown(
        self,
        api: Api<Node>,
        mut classes: watch::Receiver<DeviceClasses>,
        mut shown: watch::Receiver<Option<Shown>>,
        mut backoff: Backoff,
    ) {
        loop {
            // A class is marked as seen before it is read, so that no change is missed while this writes
            let patch = {
                let (classes, shown) = (classes.borrow_and_update(), shown.borrow_and_update());
                shown.as_ref().and_then(|shown| resources_patch(self.flavor, &classes, shown))
            };
            if let Some(patch) = patch {
                let written = api.patch_status(&self.node, &PatchParams::default(), &Patch::Merge(patch)).await;
                match written {
                    Ok(_) => {
                        backoff.reset();
                        tokio::time::sleep(WRITE_INTERVAL).await;
                    }
                    Err(error) => {
                        let (node, error) = (&self.node, error_chain(&error));
                        tracing::warn!(node, error, "cannot update the extended resources of the Node; retrying");
                        tokio::time::sleep(backoff.fail()).await;
                        continue;
                    }
                }
            }
            let changed = tokio::select! {
                changed = classes.changed() => changed,
                changed = shown.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

impl Shown {
    /// Returns what a Node shows; `None` for one that is being deleted, which is left alone.
    fn of(flavor: ApiFlavor, selection: &NodeSelection, node: &Node) -> Option<Self> {
        if node.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let ours = |resources: Option<&BTreeMap<String, Quantity>>| {
            let prefixes = [flavor.size_resource_prefix(), flavor.free_resource_prefix()];
            let is_ours = |(name, _): &(&String, _)| prefixes.iter().any(|prefix| name.starts_with(prefix));
            let resources = resources.into_iter().flatten().filter(is_ours);
            // Whatever cannot be read is none of our values, and is overwritten
            resources.map(|(name, value)| (name.clone(), parse_bytes(value).unwrap_or(u64::MAX))).collect()
        };
        let status = node.status.as_ref();
        Some(Self {
            state: selection.state(node.metadata.labels.as_ref()),
            capacity: ours(status.and_then(|status| status.capacity.as_ref())),
            allocatable: ours(status.and_then(|status| status.allocatable.as_ref())),
        })
    }
}

/// Returns a merge patch of the resources that differ; `None` if none does. Removes the resources of classes that are
/// gone. Returns nothing until lvmd has reported its classes once.
fn resources_patch(flavor: ApiFlavor, classes: &DeviceClasses, shown: &Shown) -> Option<Value> {
    if classes.classes.is_empty() && !classes.is_connected {
        return None;
    }
    let wanted = wanted_resources(flavor, classes, shown.state);
    let capacity = differences(&wanted, &shown.capacity);
    // kubelet makes it the same as the capacity, but not at once
    let allocatable = differences(&wanted, &shown.allocatable);
    let is_same = capacity.is_empty() && allocatable.is_empty();
    (!is_same).then(|| json!({"status": {"capacity": capacity, "allocatable": allocatable}}))
}

/// Returns the resources that a Node is to have; a value is an `i64` in the API server. A Node that takes no volumes
/// has no free bytes; one without volumes and without a selecting label has none of them.
fn wanted_resources(flavor: ApiFlavor, classes: &DeviceClasses, state: NodeState) -> Resources {
    if state == NodeState::Excluded {
        return Resources::new();
    }
    let default = classes.class("").map(|class| (DEFAULT_DEVICE_CLASS_KEY, class));
    let named = classes.classes.iter().map(|class| (class.name.as_str(), class)).chain(default);
    let resources = named.flat_map(|(name, class)| {
        let size = class.thin_pool.map_or(class.group_bytes, |pool| pool.bytes);
        let free = if state == NodeState::Selected { class.free_bytes } else { 0 };
        [(flavor.size_resource_prefix(), size), (flavor.free_resource_prefix(), free)]
            .map(|(prefix, bytes)| (format!("{prefix}{name}"), bytes.min(i64::MAX.unsigned_abs())))
    });
    resources.collect()
}

/// Returns what turns `present` into `wanted`, as members of a merge patch.
fn differences(wanted: &Resources, present: &Resources) -> Map<String, Value> {
    let changed = wanted.iter().filter(|(name, value)| present.get(*name) != Some(value));
    let gone = present.keys().filter(|name| !wanted.contains_key(*name));
    let changed = changed.map(|(name, value)| (name.clone(), Value::from(value.to_string())));
    changed.chain(gone.map(|name| (name.clone(), Value::Null))).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use lvmd_client::{DeviceClass, ThinPool};

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    fn classes() -> DeviceClasses {
        let thick = DeviceClass { name: "ssd".to_owned(), group_bytes: 10 << 30, thin_pool: None, free_bytes: 7 };
        let pool = ThinPool { bytes: 4 << 30, data_percent: 0.0, metadata_percent: 0.0, problem: None };
        let thin = DeviceClass { name: "thin".to_owned(), thin_pool: Some(pool), free_bytes: u64::MAX, ..thick };
        DeviceClasses { is_connected: true, classes: vec![thick, thin], default_class: Some("ssd".to_owned()) }
    }

    fn shown(labels: &Value, resources: &Value) -> Shown {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels},
            "status": {"capacity": resources, "allocatable": resources},
        });
        let selection = "topolvm.io/storage=enabled".parse().unwrap();
        Shown::of(FLAVOR, &selection, &serde_json::from_value(node).unwrap()).unwrap()
    }

    fn patch(labels: &Value, resources: &Value) -> Option<Value> {
        resources_patch(FLAVOR, &classes(), &shown(labels, resources))
    }

    #[test]
    fn extended_resources_have_size_and_free_bytes_per_class() {
        let selected = json!({"topolvm.io/storage": "enabled"});
        let others = json!({"cpu": "2", "free.topolvm.cybozu.com/ssd": "5", "topolvm.io/capacity": "1"});
        let expected = json!({
            "size.topolvm.io/00default": "10737418240", "free.topolvm.io/00default": "7",
            "size.topolvm.io/ssd": "10737418240", "free.topolvm.io/ssd": "7",
            "size.topolvm.io/thin": "4294967296", "free.topolvm.io/thin": "9223372036854775807",
        });
        let whole = json!({"status": {"capacity": expected, "allocatable": expected}});
        assert_eq!(patch(&selected, &others), Some(whole));
        // However the API server and kubelet write these numbers
        let mut written = expected;
        written["size.topolvm.io/ssd"] = json!("10Gi");
        assert_eq!(patch(&selected, &written), None);
    }

    #[test]
    fn extended_resources_are_restored_and_stale_ones_removed() {
        let mut resources = json!({"free.topolvm.io/gone": "1", "size.topolvm.io/gone": "2"});
        for (name, bytes) in wanted_resources(FLAVOR, &classes(), NodeState::Selected) {
            resources[name] = json!(bytes.to_string());
        }
        resources["size.topolvm.io/ssd"] = json!("0");
        let expected = json!({
            "free.topolvm.io/gone": null, "size.topolvm.io/gone": null, "size.topolvm.io/ssd": "10737418240",
        });
        let whole = json!({"status": {"capacity": expected, "allocatable": expected}});
        assert_eq!(patch(&json!({"topolvm.io/storage": "enabled"}), &resources), Some(whole));
    }

    #[rstest]
    #[case::retained(json!({"topolvm.io/has-volumes": "true"}), json!("0"))]
    #[case::excluded(json!({}), Value::Null)]
    fn a_node_without_the_label_has_no_free_bytes(#[case] labels: Value, #[case] expected: Value) {
        let patch = patch(&labels, &json!({"free.topolvm.io/ssd": "7"})).unwrap();
        assert_eq!(patch["status"]["capacity"]["free.topolvm.io/ssd"], expected);
    }

    #[test]
    fn nothing_is_taken_away_before_lvmd_has_answered() {
        let shown = shown(&json!({"topolvm.io/storage": "enabled"}), &json!({"free.topolvm.io/ssd": "7"}));
        assert_eq!(resources_patch(FLAVOR, &DeviceClasses::default(), &shown), None);
    }
}
