//! CSIStorageCapacity objects that the controller publishes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::Body;
use crate::fixture::{CLASS, Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] =
    &[("capacity_objects_are_written_only_when_free_space_changes", publish_capacity)];

const NAMESPACE: &str = "topolvm-system";
const OBJECTS: &str = "csistoragecapacities.storage.k8s.io";
const CAPACITY: &str = "capacity.topolvm.io/00default";
const MIB: u64 = 1 << 20;
/// A node that is not there any more.
const GONE: &str = "gone";

fn publish_capacity(fixture: &Fixture) -> Result<()> {
    let done = publish(fixture);
    fixture.kubectl(&["delete", OBJECTS, "--all", "-n", NAMESPACE])?;
    fixture.kubectl(&["delete", "deployment", "publisher", "-n", NAMESPACE, "--ignore-not-found"])?;
    done
}

fn publish(fixture: &Fixture) -> Result<()> {
    for (node, gib) in [("cap-1", 5), ("cap-2", 7)] {
        fixture.create_node(node)?;
        set_capacity(fixture, node, gib)?;
    }
    // Objects of csi-provisioner: one of a node that stays, and one of a deleted node
    for (name, node) in [("csisc-adopted", "cap-1"), ("csisc-obsolete", GONE)] {
        fixture.apply(&left_object(name, node))?;
    }
    let pod = create_pod(fixture)?;
    let owner =
        fixture.kubectl(&["get", "deployment", "publisher", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"])?;
    let arguments = ["--embed=capacity", &format!("--pod-namespace={NAMESPACE}"), &format!("--pod-name={pod}")];
    let before = fixture.with_controller(&arguments, || {
        wait_published(fixture, &[("cap-1", 5 * 1024), ("cap-2", 7 * 1024)])?;
        for object in read_objects(fixture)?.values() {
            let owners: Vec<_> = object["metadata"]["ownerReferences"].as_array().into_iter().flatten().collect();
            ensure!(owners.len() == 1 && owners[0]["uid"] == owner, "not owned by the Deployment: {object}");
        }
        ensure!(read_objects(fixture)?.contains_key("csisc-adopted"), "the object of csi-provisioner was recreated");
        set_capacity(fixture, "cap-1", 4)?;
        wait_published(fixture, &[("cap-1", 4 * 1024), ("cap-2", 7 * 1024)])?;
        fixture.create_volume("pvc-published", "cap-2")?;
        wait_published(fixture, &[("cap-1", 4 * 1024), ("cap-2", 6 * 1024)])?;
        read_objects(fixture)
    })?;
    // The next leader finds all objects up to date: its first writes are only the change
    fixture.with_controller(&arguments, || {
        set_capacity(fixture, "cap-1", 3)?;
        wait_published(fixture, &[("cap-1", 3 * 1024), ("cap-2", 6 * 1024)])?;
        let after = read_objects(fixture)?;
        ensure!(after.keys().eq(before.keys()), "{before:#?}, then {after:#?}");
        let written = after.iter().filter(|(name, object)| before.get(*name) != Some(object));
        let written: Vec<_> = written.map(|(_, object)| node_of(object)).collect();
        ensure!(written == ["cap-1"], "written again: {written:?}");
        fixture.kubectl(&["delete", LV, "pvc-published", "--wait=false"])?;
        fixture.kubectl(&["delete", "node", "cap-1", "cap-2", "--timeout=180s"])?;
        wait_published(fixture, &[])
    })?;
    fixture.check_rights()
}

fn set_capacity(fixture: &Fixture, node: &str, gib: u64) -> Result<()> {
    let annotation = format!("{CAPACITY}={}", gib << 30);
    fixture.kubectl(&["annotate", "node", node, "--overwrite", &annotation]).map(drop)
}

fn left_object(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {
            "csi.storage.k8s.io/drivername": "topolvm.io",
            "csi.storage.k8s.io/managed-by": "external-provisioner",
        }},
        "storageClassName": CLASS, "capacity": "1Gi",
        "nodeTopology": {"matchLabels": {"topology.topolvm.io/node": node}},
    })
}

/// Creates a Deployment, whose pod no node runs, and returns the name of the pod.
fn create_pod(fixture: &Fixture) -> Result<String> {
    fixture.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "publisher", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": "publisher"}},
            "template": {
                "metadata": {"labels": {"app": "publisher"}},
                "spec": {"containers": [{"name": "publisher", "image": "publisher"}]},
            },
        },
    }))?;
    fixture.cluster.ready("controller-manager", || {
        let format = "jsonpath={.items[0].metadata.name}";
        let name = fixture.kubectl(&["get", "pods", "-n", NAMESPACE, "-l", "app=publisher", "-o", format])?;
        ensure!(!name.is_empty(), "the Deployment has no pod");
        Ok(name)
    })
}

/// Reads the objects by name.
fn read_objects(fixture: &Fixture) -> Result<BTreeMap<String, Value>> {
    let path = format!("/apis/storage.k8s.io/v1/namespaces/{NAMESPACE}/csistoragecapacities");
    let list: Value = fixture.cluster.get(&path)?;
    let items = list["items"].as_array().context("no list")?.iter();
    Ok(items.map(|object| (text(&object["metadata"]["name"]), object.clone())).collect())
}

/// Waits until the objects are these: nodes and MiB, in order, of the one StorageClass.
fn wait_published(fixture: &Fixture, expected: &[(&str, u64)]) -> Result<()> {
    let expected: Vec<_> = expected.iter().map(|(node, mib)| ((*node).to_owned(), *mib)).collect();
    fixture.cluster.ready("apiserver", || {
        let mut found = Vec::new();
        for object in read_objects(fixture)?.values().filter(|object| object["storageClassName"] == CLASS) {
            let node = node_of(object);
            ensure!(node != GONE, "the object of a node that is not there is still there");
            // Other tests have nodes, too
            if !node.starts_with("cap-") {
                continue;
            }
            let capacity = serde_json::from_value(object["capacity"].clone())?;
            found.push((node, topolvm_api::parse_bytes(&capacity)? / MIB));
        }
        found.sort();
        ensure!(found == expected, "published: {found:?}, expected {expected:?}");
        Ok(())
    })
}

fn node_of(object: &Value) -> String {
    text(&object["nodeTopology"]["matchLabels"]["topology.topolvm.io/node"])
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
