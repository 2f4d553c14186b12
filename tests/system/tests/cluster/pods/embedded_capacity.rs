//! CSIStorageCapacity objects that go from csi-provisioner to topolvm-controller, with the component
//! `embedded-capacity`, and back: the controller takes over the objects of csi-provisioner, without duplicates, and the
//! current publisher keeps them up to date.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use system_tests::plugin;
use system_tests::shared::TestCluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_api::parse_bytes;

/// Free bytes of the default device class of a node.
const FREE: &str = r".metadata.annotations.capacity\.topolvm\.io/00default";

/// The objects, by StorageClass and node.
pub(super) type Published = BTreeMap<(String, String), Value>;

/// Reads the objects. Two of one StorageClass and node are an error: kube-scheduler would believe either.
pub(super) fn read_published(shared: &TestCluster) -> Result<Published> {
    let list = shared.kubectl(&["get", "csistoragecapacities", "-n", NAMESPACE, "-o", "json"])?;
    let list: Value = serde_json::from_str(&list).context("kubectl prints no JSON")?;
    let mut published = Published::new();
    for object in list["items"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let node = &object["nodeTopology"]["matchLabels"]["topology.topolvm.io/node"];
        let twice = published.insert((text(&object["storageClassName"]), text(node)), object.clone());
        ensure!(twice.is_none(), "two objects are of one StorageClass and node: {object:#} and {twice:#?}");
    }
    ensure!(!published.is_empty(), "nothing is published");
    Ok(published)
}

/// Checks that the current publisher publishes a new StorageClass, too: a pod is scheduled by its object, which follows
/// the free space and is deleted with the class. `publisher` is the name of these objects. The size differs from that
/// of volumes whose space may become free in the meantime.
pub(super) fn check_publishing(shared: &TestCluster, node: &Node, publisher: &'static str, size: &str) -> Result<()> {
    shared.apply(&storage_class(TopoLvm, publisher, None, false))?;
    let free = wait_published(shared, node, publisher, |_| true)?;
    shared.apply(&claim(publisher, publisher, size, VolumeMode::Filesystem))?;
    // kube-scheduler takes no node without an object for the StorageClass
    shared.apply(&pod(publisher, publisher, VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{publisher}"), "--timeout=180s"])?;
    wait_published(shared, node, publisher, |published| published != free)?;
    plugin::wait_until_ok(&shared.cluster, "capacity-tracking")?;
    let used = [format!("pod/{publisher}"), format!("pvc/{publisher}"), format!("storageclass/{publisher}")];
    for object in &used {
        shared.kubectl(&["delete", object, "--timeout=180s"])?;
    }
    shared.cluster.ready("apiserver", || {
        let published = read_published(shared)?;
        ensure!(!published.contains_key(&(publisher.to_owned(), node.name().to_owned())), "its object is left");
        Ok(())
    })
}

/// Checks that the objects are the same as before, with their UIDs.
pub(super) fn check_same(shared: &TestCluster, before: &Published) -> Result<()> {
    let uids = |published: &Published| -> BTreeMap<_, _> {
        published.iter().map(|(segment, object)| (segment.clone(), object["metadata"]["uid"].clone())).collect()
    };
    let (were, are) = (uids(before), uids(&read_published(shared)?));
    ensure!(were == are, "the objects were {were:#?} and are {are:#?}");
    Ok(())
}

/// Waits until the bytes that are published for a StorageClass on the node are those that the Node has, and as wanted,
/// and returns them. csi-provisioner polls once a minute unless the storage of a claim, or another object that it
/// watches, has changed.
fn wait_published(shared: &TestCluster, node: &Node, class: &str, is_wanted: impl Fn(&str) -> bool) -> Result<String> {
    let segment = (class.to_owned(), node.name().to_owned());
    shared.cluster.ready("apiserver", || {
        let published = read_published(shared)?;
        let object = published.get(&segment).with_context(|| format!("nothing is published for {segment:?}"))?;
        let bytes = parse_bytes(&serde_json::from_value(object["capacity"].clone())?)?.to_string();
        let of_node = shared.value("node", node.name(), FREE)?;
        let is_so = bytes == of_node && is_wanted(&bytes);
        ensure!(is_so, "{bytes} bytes are published for {segment:?}, and {of_node} of the node");
        Ok(bytes)
    })
}
