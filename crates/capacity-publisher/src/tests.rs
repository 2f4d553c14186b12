use serde_json::{Value, json};
use topolvm_capacity::{watch_claims, watch_classes, watch_nodes, watch_volumes};
use topolvm_runtime::Tasks;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{claim, logical_volume, node, storage_class};

use super::*;

const OBJECTS: &str = "csistoragecapacities";
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A publisher over a fake API server.
struct Harness {
    api: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Harness {
    fn start(api: &ApiServer) -> Self {
        let (shutdown, client, flavor) = (CancellationToken::new(), api.client(), ApiFlavor::TopoLvm);
        let tasks = Tasks::new(shutdown.clone());
        let minimums = MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB };
        let capacity = Capacity::new(flavor, minimums, || k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        tasks.spawn("nodes", watch_nodes(capacity.clone(), client.clone(), shutdown.clone()));
        tasks.spawn("volumes", watch_volumes(capacity.clone(), flavor, client.clone(), shutdown.clone()));
        tasks.spawn("claims", watch_claims(capacity.clone(), client.clone(), shutdown.clone()));
        tasks.spawn("classes", watch_classes(capacity.clone(), client.clone(), shutdown.clone()));
        let (namespace, pod) = ("default".to_owned(), "controller-0".to_owned());
        let publisher = CapacityPublisher { client, flavor, minimums, capacity, namespace, pod };
        tasks.spawn("publisher", publisher.run(shutdown.clone()));
        Self { api: api.clone(), tasks, shutdown }
    }

    /// Waits until nothing is written any more.
    async fn settled(&self) -> Vec<(String, String, u64)> {
        tokio::time::sleep(Duration::from_secs(3)).await;
        published(&self.api)
    }

    fn writes(&self) -> usize {
        ["create", "patch", "delete"].iter().map(|verb| self.api.count(verb, OBJECTS)).sum()
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// StorageClass, node and GiB of all objects, in order.
fn published(api: &ApiServer) -> Vec<(String, String, u64)> {
    let row = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let capacity = serde_json::from_value(object["capacity"].clone()).unwrap();
        let node = &object["nodeTopology"]["matchLabels"]["topology.topolvm.io/node"];
        let bytes = topolvm_api::parse_bytes(&capacity).unwrap();
        (text(&object["storageClassName"]), text(node), bytes / GIB)
    };
    let mut rows: Vec<_> = api.list_json(OBJECTS).iter().map(row).collect();
    rows.sort();
    rows
}

fn rows(expected: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
    expected.iter().map(|(class, node, gib)| ((*class).to_owned(), (*node).to_owned(), *gib)).collect()
}

/// Two nodes, a StorageClass of the default class and one of `ssd`.
fn server() -> ApiServer {
    let api = ApiServer::new();
    api.apply_json(node("n1").capacity("", 10).capacity("ssd", 7).build());
    api.apply_json(node("n2").capacity("", 20).build());
    api.apply_json(storage_class("default").build());
    api.apply_json(storage_class("fast").device_class("ssd").build());
    api
}

const PUBLISHED: [(&str, &str, u64); 4] =
    [("default", "n1", 10), ("default", "n2", 20), ("fast", "n1", 7), ("fast", "n2", 0)];

#[tokio::test(start_paused = true)]
async fn each_class_has_an_object_on_each_node_and_a_full_node_too() {
    let api = server();
    api.apply_json(storage_class("immediate").immediate().build());
    api.apply_json(storage_class("foreign").provisioner("ebs.example").build());
    let harness = Harness::start(&api);
    assert_eq!(harness.settled().await, rows(&PUBLISHED));
    let object = &api.list_json(OBJECTS)[0];
    assert!(object["metadata"]["name"].as_str().unwrap().starts_with("csisc-"), "{object}");
    let labels = json!({"csi.storage.k8s.io/drivername": "topolvm.io",
        "csi.storage.k8s.io/managed-by": "external-provisioner"});
    assert_eq!(object["metadata"]["labels"], labels);
    assert_eq!(object["maximumVolumeSize"], Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn changes_of_nodes_classes_volumes_and_claims_are_followed() {
    let api = server();
    let harness = Harness::start(&api);
    harness.settled().await;
    api.apply_json(node("n1").capacity("", 10).capacity("ssd", 5).build());
    assert_eq!(harness.settled().await[2], rows(&[("fast", "n1", 5)])[0]);
    api.apply_json(logical_volume("pvc-1").class("ssd").sized("2Gi").build());
    assert_eq!(harness.settled().await[2], rows(&[("fast", "n1", 3)])[0]);
    api.apply_json(claim("data").class("default").selected_node("n2").sized("4Gi").build());
    assert_eq!(harness.settled().await[1], rows(&[("default", "n2", 16)])[0]);
    api.delete("nodes", "", "n2");
    api.delete("storageclasses", "", "default");
    assert_eq!(harness.settled().await, rows(&[("fast", "n1", 3)]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_class_with_an_option_class_has_what_its_layout_can_have() {
    let api = server();
    api.apply_json(node("n1").capacity("", 10).capacity("ssd", 7).copies("ssd", "mirrored", 3, 2).build());
    let safe = storage_class("safe").device_class("ssd").parameter("topolvm.io/lvcreate-option-class", "mirrored");
    api.apply_json(safe.build());
    let harness = Harness::start(&api);
    assert_eq!(
        harness.settled().await[2..],
        rows(&[("fast", "n1", 7), ("fast", "n2", 0), ("safe", "n1", 3), ("safe", "n2", 0)])
    );
    api.apply_json(claim("data").class("safe").selected_node("n1").sized("1Gi").build());
    assert_eq!(
        harness.settled().await[2..],
        rows(&[("fast", "n1", 5), ("fast", "n2", 0), ("safe", "n1", 2), ("safe", "n2", 0)])
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn less_than_the_smallest_volume_is_published_as_nothing() {
    let api = server();
    api.apply_json(node("n1").capacity_bytes("", 8 * MIB - 1).build());
    let harness = Harness::start(&api);
    harness.settled().await;
    let capacities: Vec<_> = api.list_json(OBJECTS).iter().map(|object| object["capacity"].clone()).collect();
    assert!(!capacities.iter().any(|capacity| capacity == "8388607"), "{capacities:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn csi_storage_capacities_are_written_only_when_they_change() {
    let api = server();
    let first = Harness::start(&api);
    first.settled().await;
    let before = api.list_json(OBJECTS);
    assert_eq!(first.writes(), 4);
    // Heartbeats of nodes, watches that restart
    api.edit("nodes", "", "n1", |node| node["metadata"]["annotations"]["other"] = json!("changed"));
    api.expire();
    first.settled().await;
    assert_eq!(first.writes(), 4);
    first.end().await;
    let second = Harness::start(&api);
    second.settled().await;
    assert_eq!((second.writes(), api.list_json(OBJECTS)), (4, before));
    second.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_of_a_node_is_a_few_writes() {
    let api = server();
    let harness = Harness::start(&api);
    harness.settled().await;
    let before = harness.writes();
    for free in 1..=20 {
        api.apply_json(node("n1").capacity("", 10).capacity("ssd", free).build());
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(harness.settled().await[2], rows(&[("fast", "n1", 20)])[0]);
    // In 600 ms
    assert!(harness.writes() - before <= 7, "{} writes", harness.writes() - before);
    harness.end().await;
}

/// An object as external-provisioner has left it.
fn left(name: &str, class: &str, labels: &Value, topology: &Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "storageClassName": class, "capacity": "99Gi", "maximumVolumeSize": "98Gi",
        "nodeTopology": {"matchLabels": topology},
    })
}

#[tokio::test(start_paused = true)]
async fn csi_storage_capacities_left_behind_are_adopted_or_removed() {
    let api = server();
    let labels =
        |driver: &str, by: &str| json!({"csi.storage.k8s.io/drivername": driver, "csi.storage.k8s.io/managed-by": by});
    let ours = labels("topolvm.io", "external-provisioner");
    let on = |node: &str| json!({"topology.topolvm.io/node": node});
    api.apply_json(left("csisc-adopted", "fast", &ours, &on("n1")));
    api.apply_json(left("csisc-twice", "fast", &ours, &on("n1")));
    api.apply_json(left("csisc-distributed", "fast", &labels("topolvm.io", "external-provisioner-n2"), &on("n2")));
    api.apply_json(left("csisc-gone", "fast", &ours, &on("n9")));
    api.apply_json(left("csisc-old-class", "slow", &ours, &on("n1")));
    api.apply_json(left("csisc-zone", "fast", &ours, &json!({"topology.kubernetes.io/zone": "a"})));
    let foreign = left("csisc-foreign", "fast", &labels("ebs.example", "external-provisioner"), &on("n1"));
    api.apply_json(foreign);
    let harness = Harness::start(&api);
    let mut expected = rows(&PUBLISHED);
    expected.insert(3, rows(&[("fast", "n1", 99)])[0].clone());
    assert_eq!(harness.settled().await, expected);
    let adopted = api.get_json(OBJECTS, "default", "csisc-adopted").unwrap();
    assert_eq!((&adopted["capacity"], &adopted["maximumVolumeSize"]), (&json!("7Gi"), &Value::Null));
    let distributed = api.get_json(OBJECTS, "default", "csisc-distributed").unwrap();
    assert_eq!(distributed["metadata"]["labels"], ours);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_deployment_of_the_pod_owns_the_objects() {
    let api = server();
    let owned = |api_version: &str, kind: &str, name: &str, owner: Option<(&str, &str, &str)>| {
        let references = owner.map(|(kind, name, uid)| {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true}])
        });
        json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": name, "namespace": "default", "ownerReferences": references}})
    };
    api.apply_json(owned("v1", "Pod", "controller-0", Some(("ReplicaSet", "controller", "set"))));
    api.apply_json(owned("apps/v1", "ReplicaSet", "controller", Some(("Deployment", "topolvm-controller", "d"))));
    let harness = Harness::start(&api);
    harness.settled().await;
    for object in api.list_json(OBJECTS) {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "topolvm-controller", "uid": "d",
            "controller": true}]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn csi_storage_capacities_recover_from_failures_and_deletion() {
    let api = server();
    api.fail_next("create", OBJECTS, 2, 500);
    let harness = Harness::start(&api);
    assert_eq!(harness.settled().await, rows(&PUBLISHED));
    let lost = api.list_json(OBJECTS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.delete(OBJECTS, "default", &lost);
    assert_eq!(harness.settled().await, rows(&PUBLISHED));
    harness.end().await;
}
