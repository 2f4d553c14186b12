//! The sidecars instead of the controllers in topolvm-controller, and the change back: volumes, snapshots and the
//! CSIStorageCapacity objects, which csi-provisioner publishes here, go from one to the other.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::commands::Commands;
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use system_tests::plugin;
use system_tests::shared::TestCluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_api::parse_bytes;

use super::{copies, rights, run_scenarios, wait_for_old_controllers, with_thin_class};

/// Free bytes of the default device class of a node.
const FREE: &str = r".metadata.annotations.capacity\.topolvm\.io/00default";

/// The objects, by StorageClass and node.
type Published = BTreeMap<(String, String), Value>;

/// Returns the component `sidecars`, with a csi-provisioner that publishes free space as in the chart of TopoLVM.
pub(super) fn with_sidecars() -> Kustomization<'static> {
    let variable = |name: &str, field: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
    let container = "/spec/template/spec/containers";
    let add_flag = |flag: &str| json!({"op": "add", "path": format!("{container}/1/args/-"), "value": flag});
    let controller = patch(
        "Deployment",
        Some("topolvm-controller"),
        &json!([
            {"op": "test", "path": format!("{container}/0/env/0/name"), "value": "CONTROLLERS"},
            {"op": "replace", "path": format!("{container}/0/env/0/value"), "value": "none"},
            {"op": "test", "path": format!("{container}/1/name"), "value": "csi-provisioner"},
            add_flag("--enable-capacity"),
            add_flag("--capacity-ownerref-level=2"),
            {
                "op": "add", "path": format!("{container}/1/env"),
                "value": [variable("POD_NAME", "metadata.name"), variable("NAMESPACE", "metadata.namespace")],
            },
        ]),
    );
    let add_rule = |group: &str, resource: &str, verbs: &[&str]| {
        let rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        json!({"op": "add", "path": "/rules/-", "value": rule})
    };
    let role = patch(
        "Role",
        Some("topolvm-sidecars"),
        &json!([
            add_rule("storage.k8s.io", "csistoragecapacities", &["create", "delete", "list", "update", "watch"]),
            add_rule("", "pods", &["get"]),
            add_rule("apps", "replicasets", &["get"]),
        ]),
    );
    let delete = json!({
        "$patch": "delete", "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "any"},
    });
    let capacity = patch("Role|RoleBinding", Some("topolvm-capacity"), &delete);
    let thin = with_thin_class();
    let patches = thin.patches.into_iter().chain([controller, role, capacity]).collect();
    Kustomization { components: &["sidecars"], patches, ..thin }
}

/// Does the whole job with the sidecars, and changes over to topolvm-controller and back.
pub(super) fn use_and_replace(shared: &TestCluster, node: &Node, scratch: &Path) -> Result<()> {
    run_scenarios(shared, node)?;
    copies::create_copies(shared, node)?;
    copies::delete_with_node(shared)?;
    rights::check_none_refused(shared, rights::LogMark::default())?;
    rights::check_all_used(shared, rights::OF_SIDECARS)?;

    let (published, began) = (read_published(shared)?, rights::mark_audit_log(shared)?);
    topolvm::roll_out(&shared.cluster, &with_thin_class().write(&scratch.join("embedded"))?)?;
    check_publishing(shared, node, "handed-over", "448Mi")?;
    check_same(shared, &published)?;
    wait_for_old_controllers(shared)?;
    Commands::of("embedded-controllers.md", "Change over")?.run(&shared.cluster)?;
    let ended = rights::mark_audit_log(shared)?;
    check_publishing(shared, node, "by-controller", "512Mi")?;
    // Not earlier: csi-provisioner may have created or deleted objects while it stopped
    rights::check_capacity_role_used(shared, began)?;
    rights::check_none_refused(shared, ended)?;

    topolvm::roll_out(&shared.cluster, &with_sidecars().write(&scratch.join("sidecars"))?)?;
    check_publishing(shared, node, "by-csi-provisioner", "384Mi")?;
    rights::check_none_missing(shared, None)
}

/// Reads the objects. Two of one StorageClass and node are an error: kube-scheduler would believe either.
fn read_published(shared: &TestCluster) -> Result<Published> {
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
fn check_publishing(shared: &TestCluster, node: &Node, publisher: &'static str, size: &str) -> Result<()> {
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
fn check_same(shared: &TestCluster, before: &Published) -> Result<()> {
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
