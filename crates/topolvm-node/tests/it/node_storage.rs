//! The NodeStorage of a node over a fake API server and the real lvmd in the same process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use lvmd_client::LvmdClient;
use node_storage::StoragePublisher;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::cluster::{GIB, now};
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, THIN_CLASS, VG, unreachable_lvmd};

pub(crate) const STORAGE: &str = "nodestorages.topolvm.io";
pub(crate) const EVENTS: &str = "events.events.k8s.io";
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// The part of an agent that publishes the storage of node `n1`.
pub(crate) struct Agent {
    node: watch::Sender<Option<PartialObjectMeta<Node>>>,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Agent {
    pub(crate) fn start(api: &ApiServer, lvmd: LvmdClient) -> Self {
        Self::start_selecting(api, lvmd, NodeSelection::default())
    }

    fn start_selecting(api: &ApiServer, lvmd: LvmdClient, selection: NodeSelection) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let (node, nodes) = watch::channel(Some(node("u1")));
        let publisher = StoragePublisher { flavor: ApiFlavor::TopoLvm, node: "n1".to_owned(), selection, lvmd, now };
        publisher.start(api.client(), nodes, &tasks, &shutdown);
        Self { node, tasks, shutdown }
    }

    /// Changes the labels of the Node.
    pub(crate) fn label(&self, labels: Option<BTreeMap<String, String>>) {
        let mut labelled = node("u1");
        labelled.metadata.labels = labels;
        self.node.send_replace(Some(labelled));
    }

    /// Writes an annotation of the Node.
    pub(crate) fn annotate(&self, key: &str, value: &str) {
        self.node.send_modify(|node| {
            let annotations = node.as_mut().unwrap().metadata.annotations.get_or_insert_default();
            annotations.insert(key.to_owned(), value.to_owned());
        });
    }

    /// The Node is deleted.
    pub(crate) fn forget_node(&self) {
        self.node.send_replace(None);
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

fn node(uid: &str) -> PartialObjectMeta<Node> {
    let metadata = json!({"name": "n1", "uid": uid});
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).unwrap()
}

/// An LVM with 10 GiB.
fn lvm() -> FakeLvm {
    FakeLvm::new().with_group(VG, 10 * GIB)
}

/// Waits until this is what the object says there.
pub(crate) async fn until_said(api: &ApiServer, pointer: &str, expected: &Value) {
    api.until(STORAGE, "", "n1", |object| (object?.pointer(pointer) == Some(expected)).then_some(())).await;
}

pub(crate) async fn until_ready(api: &ApiServer, expected: &str) {
    until_said(api, "/status/conditions/0/status", &json!(expected)).await;
}

async fn until_reason(api: &ApiServer, expected: &str) {
    until_said(api, "/status/conditions/0/reason", &json!(expected)).await;
}

/// Counts the requests about the object.
fn requests(api: &ApiServer) -> usize {
    api.requests().iter().filter(|(_, path)| path.contains("nodestorages")).count()
}

#[tokio::test(start_paused = true)]
async fn the_object_is_the_nodes_and_says_what_lvmd_says() {
    let (api, lvm) = (ApiServer::new(), lvm());
    let lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    let object = api.get_json(STORAGE, "", "n1").unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}]);
    assert_eq!(object.pointer("/metadata/ownerReferences"), Some(&owner));
    let expected = json!({
        "size": "10Gi", "free": "10Gi",
        "volumeGroups": [{
            "name": "myvg", "uuid": "uuid-of-myvg", "size": "10Gi", "free": "10Gi", "extentSize": "4Mi",
            "physicalVolumes": [{
                "path": "/dev/fake0", "uuid": "uuid-of-myvg-0", "size": "10Gi", "free": "10Gi", "device": "8:0",
                "allocatable": true,
            }],
        }],
        "deviceClasses": [{
            "name": "ssd", "default": true, "type": "thick", "volumeGroup": "myvg", "size": "10Gi", "free": "10Gi",
        }],
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "StorageHealthy", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    assert_eq!(object.pointer("/status"), Some(&expected));

    // Changes by hand, and a disk that goes and comes back
    lvm.extend_group(VG, 5 * GIB);
    until_said(&api, "/status/free", &json!("15Gi")).await;
    lvm.set_missing_pvs(VG, 1);
    until_said(&api, "/status/conditions/0/reason", &json!("PhysicalVolumeMissing")).await;
    let object = api.get_json(STORAGE, "", "n1").unwrap();
    assert_eq!(object.pointer("/status/volumeGroups/0/physicalVolumes/0/missing"), Some(&json!(true)));
    lvm.set_missing_pvs(VG, 0);
    until_ready(&api, "True").await;
    assert_eq!(api.get_json(STORAGE, "", "n1").unwrap().pointer("/status/problems"), None);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_reports_a_stopped_agent_until_it_restarts() {
    let (api, lvm) = (ApiServer::new(), lvm());
    lvm.add_volume(VG, "pool", FakeVolume::thin_pool(4 * GIB));
    let lvmd = LvmdProcess::start(&lvm, THIN_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    sleep(MINUTE).await;
    let before = api.get_json(STORAGE, "", "n1").unwrap();
    // Less than a percent
    lvm.edit_volume(VG, "pool", |pool| (pool.data_percent, pool.metadata_percent) = (0.4, 0.9));
    sleep(HOUR).await;
    assert_eq!((api.count("create", STORAGE), api.count("patch", STORAGE)), (1, 1));
    agent.stop().await;
    let stopped = api.get_json(STORAGE, "", "n1").unwrap();
    let condition = &stopped["status"]["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("Unknown"), &json!("AgentStopped")));
    assert_eq!(stopped["status"]["free"], before["status"]["free"]);

    let agent = Agent::start(&api, lvmd.client());
    sleep(HOUR).await;
    assert_eq!(api.count("patch", STORAGE), 3);
    assert_eq!(api.get_json(STORAGE, "", "n1").unwrap()["status"], before["status"]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_burst_is_written_every_five_seconds() {
    let (api, lvm) = (ApiServer::new(), lvm());
    let lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    sleep(MINUTE).await;
    // One volume each second, for 30 seconds
    for number in 0..30 {
        lvm.add_volume(VG, &format!("v{number}"), FakeVolume::thick(GIB / 4));
        sleep(Duration::from_secs(1)).await;
    }
    until_said(&api, "/status/free", &json!("2560Mi")).await;
    sleep(MINUTE).await;
    let writes = api.count("patch", STORAGE) - 1;
    assert!((4..=8).contains(&writes), "{writes}");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_is_recreated_only_for_the_current_node() {
    let api = ApiServer::new();
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    agent.node.send_replace(None);
    api.delete(STORAGE, "", "n1");
    sleep(HOUR).await;
    assert_eq!(api.get_json(STORAGE, "", "n1"), None, "without a Node nothing would ever take it away");
    agent.node.send_replace(Some(node("u2")));
    until_ready(&api, "True").await;
    until_said(&api, "/metadata/ownerReferences/0/uid", &json!("u2")).await;

    let mut leaving = node("u2");
    leaving.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    agent.node.send_replace(Some(leaving));
    api.delete(STORAGE, "", "n1");
    sleep(HOUR).await;
    assert_eq!(api.get_json(STORAGE, "", "n1"), None);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_without_its_crd_is_requested_rarely() {
    let api = ApiServer::new();
    let definition =
        topolvm_testkit::api_server::Kind::cluster_scoped("topolvm.io", "v1", "NodeStorage", "nodestorages");
    api.withdraw(STORAGE);
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    sleep(HOUR).await;
    assert!((2..=8).contains(&requests(&api)), "{:?}", api.requests());
    api.serve(definition.with_status());
    until_ready(&api, "True").await;

    // And goes on when it is taken away
    api.withdraw(STORAGE);
    api.close_watches();
    api.clear_requests();
    sleep(HOUR).await;
    assert!((2..=9).contains(&requests(&api)), "{:?}", api.requests());
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_requests_are_rare_without_permissions() {
    let api = ApiServer::new();
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    api.fail_next("list", STORAGE, 3, 403);
    let agent = Agent::start(&api, lvmd.client());
    sleep(MINUTE).await;
    assert_eq!(requests(&api), 1);
    until_ready(&api, "True").await;
    agent.stop().await;

    let api = ApiServer::new();
    api.fail_next("create", STORAGE, 12, 403);
    let agent = Agent::start(&api, lvmd.client());
    sleep(HOUR).await;
    assert_eq!(api.count("create", STORAGE), 13);
    until_ready(&api, "True").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_is_written_despite_concurrent_changes() {
    let api = ApiServer::new();
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    let object = json!({"apiVersion": "topolvm.io/v1", "kind": "NodeStorage", "metadata": {"name": "n1"}});
    let made = object.clone();
    api.before_next("create", STORAGE, move |api| drop(api.apply_json(&made)));
    api.before_next("patch", STORAGE, move |api| {
        api.delete(STORAGE, "", "n1");
        api.apply_json(&object);
    });
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_storage_reports_a_long_lvmd_outage_after_a_restart() {
    let (api, lvm) = (ApiServer::new(), lvm());
    let lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    agent.stop().await;

    // lvmd may start later than the agent
    let agent = Agent::start(&api, unreachable_lvmd());
    sleep(Duration::from_secs(8)).await;
    until_reason(&api, "AgentStopped").await;
    until_reason(&api, "LvmdUnavailable").await;
    until_said(&api, "/status/free", &json!("10Gi")).await;
    sleep(HOUR).await;
    assert_eq!(api.count("patch", STORAGE), 3);
    agent.stop().await;

    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lvmd_without_storage_stream_costs_nothing_and_gets_no_object() {
    let api = ApiServer::new();
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    let of_topolvm = lvmd.client_counting(&Arc::new(AtomicUsize::new(0)));
    let error = of_topolvm.watch_storage().await.map(drop).unwrap_err();
    assert!(error.is_unimplemented(), "{error}");
    let agent = Agent::start(&api, of_topolvm);
    sleep(HOUR).await;
    assert_eq!((api.count("create", STORAGE), api.count("patch", STORAGE)), (0, 0));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_selected_has_no_object_until_it_is() {
    let api = ApiServer::new();
    let lvmd = LvmdProcess::start(&lvm(), ONE_CLASS).await;
    let selection: NodeSelection = "topolvm.io/storage=enabled".parse().unwrap();
    let agent = Agent::start_selecting(&api, lvmd.client(), selection);
    sleep(HOUR).await;
    assert_eq!(api.list_json(STORAGE), Vec::<Value>::new());
    let mut selected = node("u1");
    selected.metadata.labels = Some([("topolvm.io/storage".to_owned(), "enabled".to_owned())].into());
    agent.node.send_replace(Some(selected));
    until_ready(&api, "True").await;
    agent.stop().await;
}

/// The reasons and notes of the Events.
pub(crate) fn events(api: &ApiServer) -> Vec<(String, String)> {
    let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let mut events: Vec<_> =
        api.list_json(EVENTS).iter().map(|event| (text(event, "reason"), text(event, "note"))).collect();
    events.sort();
    events
}

#[tokio::test(start_paused = true)]
async fn node_storage_lists_disks_and_each_change_has_one_event() {
    let (api, lvm) = (ApiServer::new(), FakeLvm::new());
    let config = |mode: &str| format!("settle-time: 0\ndisk-groups: [{{name: g, mode: {mode}, paths: [/dev/sd.]}}]");
    let (report, auto) = (config("report"), config("auto"));
    lvm.plug("sdb", 10 * GIB);
    let lvmd = LvmdProcess::start(&lvm, &report).await;
    let agent = Agent::start(&api, lvmd.client());
    until_ready(&api, "True").await;
    assert_eq!(api.get_json(STORAGE, "", "n1").unwrap().pointer("/status/disks"), None);
    lvmd.look_at_disks(&lvm, &report).await;
    let candidate = json!([{
        "path": "/dev/sdb", "stableName": "/dev/disk/by-id/ata-fake_sdb", "size": "10Gi", "transport": "sata",
        "rotational": false, "diskGroup": "g", "state": "candidate",
        "message": "would be added to disk group g (mode is report)",
    }]);
    until_said(&api, "/status/disks", &candidate).await;
    sleep(MINUTE).await;
    let available = "blank disks could be added: /dev/sdb (ata-fake_sdb, 10Gi) to disk group g; `mode: auto` of the \
                     disk group in lvmd.yaml adds them";
    assert_eq!(events(&api), [("DiskAvailable".to_owned(), available.to_owned())]);

    // A start of lvmd and of the agent, and before the first look at the disks
    agent.stop().await;
    lvmd.stop().await;
    let lvmd = LvmdProcess::start(&lvm, &auto).await;
    let agent = Agent::start(&api, lvmd.client());
    sleep(MINUTE).await;
    until_said(&api, "/status/disks", &candidate).await;
    lvmd.look_at_disks(&lvm, &report).await;
    sleep(MINUTE).await;
    assert_eq!(events(&api).len(), 1);

    lvm.fail("vgcreate", 1, Fault::Spawn);
    lvmd.look_at_disks(&lvm, &auto).await;
    until_said(&api, "/status/disks/0/reasons", &json!(["failed"])).await;
    lvmd.look_at_disks(&lvm, &auto).await;
    until_said(&api, "/status/disks/0/state", &json!("member")).await;
    lvm.pull("sdb");
    lvmd.look_at_disks(&lvm, &auto).await;
    until_said(&api, "/status/diskGroups/0/missingDisks", &json!(1)).await;
    sleep(MINUTE).await;
    let reasons: Vec<_> = events(&api).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["DeviceClassRefused", "DiskAdded", "DiskAdditionFailed", "DiskAvailable", "DiskMissing"]);
    let regarding = &api.list_json(EVENTS)[0]["regarding"];
    assert_eq!((&regarding["kind"], &regarding["uid"]), (&json!("Node"), &json!("u1")));
    agent.stop().await;
}
