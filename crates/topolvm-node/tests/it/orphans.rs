//! LVs whose object is gone: reported, put into quarantine when every fact agrees, given back, restored and removed.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lvmd_client::{DeviceClass, DeviceClasses};
use node_orphans::{OrphanPolicy, OrphanSettings};
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use topolvm_api::{ApiFlavor, NodeOrphans};
use topolvm_kube::{LogicalVolumeWriter, ReconcileMetrics};
use topolvm_node::reconcile::{Triggers, VolumeGauges};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::fixtures::node;
use topolvm_testkit::lvm::FakeVolume;

use crate::cluster::{Cluster, FINALIZER, GIB, LV, fresh, now, reconciler_of};
use crate::lvmd_process::VG;

const NODES: &str = "nodes";
const EVENTS: &str = "events.events.k8s.io";
const GONE: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const KEPT: &str = "topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const STAYS: &str = "1b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const NEW: &str = "2b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
/// Number of scans after which a volume that may still be needed must be unchanged.
const LOOKS: usize = 4;

/// An agent that runs, with two volumes, of which the first is to lose its object.
struct Agent {
    cluster: Cluster,
    registry: Registry,
    device_classes: watch::Sender<DeviceClasses>,
    _end: End,
}

/// Ends the tasks of an agent.
struct End(CancellationToken);

impl Drop for End {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Agent {
    /// Starts it, and waits until both volumes are ready and, unless LVs are only reported, remembered.
    async fn start(policy: OrphanPolicy) -> Self {
        let agent = Self::over(Cluster::start().await, settings(policy));
        agent.cluster.api.apply_json(json!(node("n1").build()));
        agent.cluster.api.apply_json(namespace("c1"));
        for (name, uid, hours) in [("pvc-gone", GONE, 2), ("pvc-stays", STAYS, 1)] {
            agent.cluster.api.apply_json(volume(name, uid, hours));
            agent.until_ready(name).await;
        }
        if policy != OrphanPolicy::Report {
            agent.until_node(|node| annotation(node, "topolvm.io/volumes-until")).await;
        }
        agent
    }

    fn over(cluster: Cluster, settings: OrphanSettings) -> Self {
        let mut registry = Registry::default();
        let (device_classes, shutdown) = (watch::Sender::new(DeviceClasses::default()), CancellationToken::new());
        let signals = Triggers {
            lvmd_returns: mpsc::channel(1).1,
            device_classes: device_classes.subscribe(),
            published: mpsc::unbounded_channel().1,
            pods: mpsc::unbounded_channel().1,
            gauges: VolumeGauges::register(&mut registry, "n1"),
        };
        let metrics = ReconcileMetrics::register(&mut registry);
        let reconciler = reconciler_of(ApiFlavor::TopoLvm, &cluster.api, cluster.lvmd.client(), settings);
        let tasks = Tasks::new(shutdown.clone());
        let writer = LogicalVolumeWriter::default();
        tasks.spawn("LogicalVolumes", Arc::new(reconciler).run(writer, signals, metrics, shutdown.clone()));
        Self { cluster, registry, device_classes, _end: End(shutdown) }
    }

    /// Ends this agent and starts another one.
    fn restart(self, settings: OrphanSettings) -> Self {
        let Self { cluster, .. } = self;
        Self::over(cluster, settings)
    }

    /// Takes the finalizer off by hand and deletes the object.
    fn lose_object(&self, name: &str) {
        let api = &self.cluster.api;
        api.edit(LV, "", name, |object| *object.pointer_mut("/metadata/finalizers").unwrap() = json!([]));
        api.delete(LV, "", name);
    }

    /// Waits until something is true, while lvmd reports changes.
    async fn until<T>(&self, mut found: impl FnMut() -> Option<T>) -> T {
        let reached = async {
            loop {
                if let Some(found) = found() {
                    return found;
                }
                let class = DeviceClass { name: "ssd".to_owned(), group_bytes: GIB, thin_pool: None, free_bytes: 0 };
                let classes = DeviceClasses { is_connected: true, classes: vec![class], default_class: None };
                self.device_classes.send_replace(classes);
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
        let state = || (self.cluster.lvm.volumes(VG), self.cluster.api.list_json(NODES));
        assert!(reached.is_ok(), "{:#?}", state());
        reached.unwrap()
    }

    async fn until_node<T>(&self, found: impl Fn(&Value) -> Option<T>) -> T {
        self.until(|| found(&self.cluster.api.get_json(NODES, "", "n1").unwrap())).await
    }

    async fn until_ready(&self, name: &str) {
        let is_ready = |object: Value| (object.pointer("/status/volumeID")? != "").then_some(());
        self.until(|| is_ready(self.cluster.api.get_json(LV, "", name)?)).await;
    }

    /// Waits until the group has just these LVs.
    async fn until_lvs(&self, names: &[&str]) {
        self.until(|| (self.cluster.lvm.volumes(VG) == names).then_some(())).await;
    }

    /// Waits until the Node says this about an LV.
    async fn until_noted(&self, lv: &str, note: &str) {
        self.until_node(|node| {
            let found = orphans(node).volumes.into_iter().find(|orphan| orphan.lv == lv)?;
            found.note.contains(note).then_some(())
        })
        .await;
    }

    /// Waits for more looks at the LVs without an object.
    async fn look(&self) {
        let looks = || self.cluster.api.count("list", NODES);
        let before = looks();
        self.until(|| (looks() >= before + LOOKS).then_some(())).await;
    }

    fn events(&self) -> Vec<String> {
        self.cluster.api.list_json(EVENTS).iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn gauge(&self, name: &str) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("topolvm_{name}_volumes{{node=\"n1\"}} ")));
        line.unwrap().to_owned()
    }
}

/// Settings with which the second look is enough.
fn settings(policy: OrphanPolicy) -> OrphanSettings {
    OrphanSettings { policy, grace_period: Duration::from_millis(1), quarantine_period: Duration::from_hours(168) }
}

/// An object that was created so many hours ago.
fn volume(name: &str, uid: &str, hours: i64) -> Value {
    let created = now().checked_sub(SignedDuration::from_hours(hours)).unwrap();
    let mut object = json!(fresh(name).uid(uid).class("ssd").build());
    let metadata = object.pointer_mut("/metadata").and_then(Value::as_object_mut).unwrap();
    metadata.insert("creationTimestamp".to_owned(), json!(created.to_string()));
    object
}

fn annotation(node: &Value, key: &str) -> Option<String> {
    node.pointer("/metadata/annotations")?.get(key)?.as_str().map(str::to_owned)
}

fn orphans(node: &Value) -> NodeOrphans {
    NodeOrphans::parse(annotation(node, "topolvm.io/orphans").as_deref()).unwrap()
}

fn namespace(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": uid}})
}

#[tokio::test]
async fn orphan_is_only_reported_until_its_object_returns() {
    let agent = Agent::start(OrphanPolicy::Report).await;
    let object = agent.cluster.object("pvc-gone");
    agent.lose_object("pvc-gone");
    agent.until_noted(GONE, "only reported").await;
    let node = agent.cluster.api.get_json(NODES, "", "n1").unwrap();
    let volumes = orphans(&node).volumes;
    assert_eq!((volumes.len(), volumes[0].logical_volume.as_str(), volumes[0].bytes), (1, "pvc-gone", GIB));
    assert_eq!((volumes[0].device_class.as_str(), annotation(&node, "topolvm.io/volumes-until")), ("ssd", None));
    assert_eq!((agent.gauge("orphaned").as_str(), agent.events()), ("1", vec!["OrphanedVolumes".to_owned()]));
    let event = &agent.cluster.api.list_json(EVENTS)[0];
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Node"), &json!("n1")));
    assert!(event["note"].as_str().unwrap().contains(GONE), "{event}");
    agent.look().await;
    assert_eq!(agent.cluster.lvm.volumes(VG), [GONE, STAYS]);

    agent.cluster.api.apply_json(object);
    agent.until_node(|node| annotation(node, "topolvm.io/orphans").is_none().then_some(())).await;
    assert_eq!(agent.events().len(), 1);
}

#[tokio::test]
async fn orphan_is_quarantined_and_restored_when_its_object_returns() {
    let agent = Agent::start(OrphanPolicy::Quarantine).await;
    let (object, uuid) = (agent.cluster.object("pvc-gone"), agent.cluster.lvm.volume(VG, GONE).unwrap().uuid);
    agent.lose_object("pvc-gone");
    agent.until_lvs(&[STAYS, KEPT]).await;
    agent.until_noted(KEPT, "in quarantine until an administrator restores or deletes it").await;
    assert_eq!((agent.gauge("orphaned").as_str(), agent.gauge("quarantined").as_str()), ("0", "1"));
    assert!(agent.events().contains(&"VolumeQuarantined".to_owned()));
    let node = agent.cluster.api.get_json(NODES, "", "n1").unwrap();
    assert_eq!(orphans(&node).volumes[0].quarantined_at, Some(now().as_second()));

    // The API server was restored from a backup
    agent.cluster.api.apply_json(object);
    agent.until_lvs(&[GONE, STAYS]).await;
    let volume = agent.cluster.lvm.volume(VG, GONE).unwrap();
    assert_eq!(volume.uuid, uuid);
    assert!(!volume.tags.iter().any(|tag| tag.contains("quarantined")), "{:?}", volume.tags);
    agent.until_node(|node| annotation(node, "topolvm.io/orphans").is_none().then_some(())).await;
}

#[tokio::test]
async fn object_returning_without_status_gets_its_quarantined_lv() {
    let agent = Agent::start(OrphanPolicy::Quarantine).await;
    let uuid = agent.cluster.lvm.volume(VG, GONE).unwrap().uuid;
    agent.lose_object("pvc-gone");
    agent.until_lvs(&[STAYS, KEPT]).await;
    agent.cluster.api.apply_json(volume("pvc-gone", GONE, 2));
    agent.until_lvs(&[GONE, STAYS]).await;
    agent.until_ready("pvc-gone").await;
    assert_eq!(agent.cluster.lvm.volume(VG, GONE).unwrap().uuid, uuid);
}

#[tokio::test]
async fn quarantined_lv_returns_to_an_object_restored_with_status() {
    let agent = Agent::start(OrphanPolicy::Quarantine).await;
    let mut object = agent.cluster.object("pvc-gone");
    agent.lose_object("pvc-gone");
    agent.until_lvs(&[STAYS, KEPT]).await;
    object["metadata"]["uid"] = json!(NEW);
    agent.cluster.api.apply_json(object);
    agent.until_lvs(&[GONE, STAYS]).await;
    assert_eq!(agent.cluster.status("pvc-gone")["volumeID"], json!(GONE));
}

/// A fault of the API server, or a use of the LV.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The agent talks to another cluster.
    OtherCluster,
    /// The list of objects is empty.
    NothingListed,
    /// A backup was restored that is older than the LV.
    RestoredBackup,
    /// The Node was deleted and is new.
    NewNode,
    /// The PersistentVolume is there.
    PersistentVolume,
    /// A PersistentVolume of another name refers to the LV.
    RenamedPersistentVolume,
    /// It is a snapshot.
    Snapshot,
    /// Both volumes have lost their objects.
    TooMany,
    /// A process has the device open.
    Open,
    /// The LV was made by another program, or an older version.
    Unmarked,
    /// The object is one of another node: the disk was moved.
    OtherNode,
    /// A backup tool has restored the object without its status.
    Restored,
}

impl Fault {
    /// Makes the first volume lose its object in this way.
    fn happen(self, agent: &Agent) {
        let (api, lvm) = (&agent.cluster.api, &agent.cluster.lvm);
        let forget_node = |value: Value| {
            api.edit(NODES, "", "n1", move |node| {
                *node.pointer_mut("/metadata/annotations/topolvm.io~1volumes-until").unwrap() = value;
            });
        };
        match self {
            Self::OtherCluster => drop(api.apply_json(namespace("c2"))),
            Self::NothingListed => {
                lvm.remove_volume(VG, STAYS);
                agent.lose_object("pvc-stays");
            }
            Self::RestoredBackup => forget_node(json!("2025-12-31T21:59:59Z")),
            Self::NewNode => forget_node(json!("")),
            Self::PersistentVolume => {
                let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-gone"}});
                api.apply_json(volume);
            }
            Self::RenamedPersistentVolume => {
                let source = json!({"driver": "topolvm.io", "volumeHandle": GONE});
                let metadata = json!({"name": "by-hand"});
                api.apply_json(json!({
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": {"csi": source},
                }));
            }
            Self::Snapshot => {
                lvm.edit_volume(VG, GONE, |volume| volume.attr.replace_range(1..2, "r"));
                lvm.extend_group(VG, 0);
            }
            Self::TooMany => agent.lose_object("pvc-stays"),
            Self::Open => lvm.edit_volume(VG, GONE, |volume| volume.open = true),
            Self::Unmarked => {
                lvm.edit_volume(VG, GONE, |volume| volume.tags.retain(|tag| !tag.contains("/cluster=")));
                lvm.extend_group(VG, 0);
            }
            Self::OtherNode | Self::Restored => {}
        }
        agent.lose_object("pvc-gone");
        if matches!(self, Self::OtherNode) {
            let mut moved = volume("pvc-gone", GONE, 2);
            *moved.pointer_mut("/spec/nodeName").unwrap() = json!("n2");
            api.apply_json(moved);
        }
        if matches!(self, Self::Restored) {
            api.apply_json(volume("pvc-gone", NEW, 0));
        }
        if matches!(self, Self::TooMany) {
            // Others are there, so that the list is not empty
            api.apply_json(volume("pvc-other", NEW, 1));
        }
    }
}

#[rstest]
#[case(Fault::OtherCluster, "another cluster")]
#[case(Fault::NothingListed, "lists no LogicalVolume of this node")]
#[case(Fault::RestoredBackup, "newer than the newest known object")]
#[case(Fault::NewNode, "newer than the newest known object")]
#[case(Fault::PersistentVolume, "PersistentVolume pvc-gone still exists")]
#[case(Fault::RenamedPersistentVolume, "PersistentVolume by-hand still exists")]
#[case(Fault::Snapshot, "read-only like a snapshot")]
#[case(Fault::TooMany, "2 LVs of this node")]
#[case(Fault::Open, "in use")]
#[case(Fault::Unmarked, "it has no tags")]
#[case(Fault::OtherNode, "belongs to node n2")]
#[case(Fault::Restored, "waits for it")]
#[tokio::test]
async fn lv_that_may_still_be_needed_is_only_reported(#[case] fault: Fault, #[case] blocker: &str) {
    let agent = Agent::start(OrphanPolicy::Delete).await;
    fault.happen(&agent);
    agent.until_noted(GONE, blocker).await;
    agent.look().await;
    let lvs = agent.cluster.lvm.volumes(VG);
    assert!(lvs.contains(&GONE.to_owned()) && !lvs.contains(&KEPT.to_owned()), "{lvs:?}");
    assert!(!agent.events().contains(&"VolumeQuarantined".to_owned()));
}

#[tokio::test]
async fn orphan_proof_needs_grace_period_and_a_working_api_server() {
    let agent = Agent::start(OrphanPolicy::Quarantine).await;
    // An hour is never over in this test
    let patient = OrphanSettings { grace_period: Duration::from_hours(1), ..settings(OrphanPolicy::Quarantine) };
    let agent = agent.restart(patient);
    agent.lose_object("pvc-gone");
    agent.until_noted(GONE, "unreferenced for 1h").await;
    let agent = agent.restart(settings(OrphanPolicy::Quarantine));
    agent.cluster.api.fail_next("get", "namespaces", 1000, 500);
    agent.look().await;
    assert_eq!(agent.cluster.lvm.volumes(VG), [GONE, STAYS]);
    agent.cluster.api.clear_faults();
    agent.until_lvs(&[STAYS, KEPT]).await;
}

#[tokio::test]
async fn orphan_newer_than_the_newest_known_object_is_kept() {
    let agent = Agent::start(OrphanPolicy::Quarantine).await;
    let remembered = |agent: &Agent| {
        annotation(&agent.cluster.api.get_json(NODES, "", "n1").unwrap(), "topolvm.io/volumes-until").unwrap()
    };
    assert_eq!(remembered(&agent), "2025-12-31T23:00:00Z");
    // A backup of two and a half hours ago has neither volume, and new ones are made
    agent.cluster.api.edit(NODES, "", "n1", |node| {
        node["metadata"]["annotations"]["topolvm.io/volumes-until"] = json!("2025-12-31T21:30:00Z");
    });
    agent.lose_object("pvc-gone");
    agent.lose_object("pvc-stays");
    let agent = agent.restart(settings(OrphanPolicy::Quarantine));
    agent.cluster.api.apply_json(volume("pvc-new", NEW, 0));
    agent.cluster.api.edit(LV, "", "pvc-new", |object| {
        object["metadata"]["creationTimestamp"] = json!("2025-12-31T23:59:00Z");
    });
    agent.until_ready("pvc-new").await;
    agent.until_noted(GONE, "newer than the newest known object").await;
    agent.look().await;
    assert_eq!(remembered(&agent), "2025-12-31T21:30:00Z");
    assert_eq!(agent.cluster.lvm.volumes(VG), [GONE, STAYS, NEW]);
}

#[tokio::test]
async fn quarantined_lv_is_removed_at_expiry_if_still_unreferenced() {
    let agent = Agent::start(OrphanPolicy::Delete).await;
    agent.lose_object("pvc-gone");
    agent.until_lvs(&[STAYS, KEPT]).await;
    agent.until_noted(KEPT, "in quarantine until 2026-01-08T00:00:00Z, then removed").await;
    // The clock jumps forward
    let expired = Timestamp::as_second(now()) - 168 * 3600;
    agent.cluster.lvm.edit_volume(VG, KEPT, |volume| {
        volume.tags.retain(|tag| !tag.contains("quarantined"));
        volume.tags.push(format!("topolvm.io/quarantined={expired}"));
    });
    agent.cluster.lvm.extend_group(VG, 0);
    agent.until_noted(KEPT, "in quarantine for 168 more hours of topolvm-node running").await;
    agent.look().await;
    assert_eq!(agent.cluster.lvm.volumes(VG), [STAYS, KEPT]);
    // Agents have measured the time
    let Agent { cluster, .. } = agent;
    cluster.api.edit(NODES, "", "n1", |node| {
        let mut kept = orphans(node);
        kept.volumes[0].kept_seconds = Some(168 * 3600);
        node["metadata"]["annotations"]["topolvm.io/orphans"] = json!(kept.to_annotation());
    });
    let agent = Agent::over(cluster, settings(OrphanPolicy::Delete));
    // An administrator restores it just then
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-gone"}});
    agent.cluster.api.apply_json(volume);
    agent.until_noted(KEPT, "PersistentVolume pvc-gone still exists").await;
    agent.look().await;
    assert_eq!(agent.cluster.lvm.volumes(VG), [STAYS, KEPT]);
    agent.cluster.api.delete("persistentvolumes", "", "pvc-gone");
    agent.until_lvs(&[STAYS]).await;
    agent.until(|| agent.events().contains(&"QuarantinedVolumeRemoved".to_owned()).then_some(())).await;
    agent.until_node(|node| annotation(node, "topolvm.io/orphans").is_none().then_some(())).await;
}

#[rstest]
#[case::reported(OrphanPolicy::Report, GONE)]
#[case::in_quarantine(OrphanPolicy::Quarantine, KEPT)]
#[tokio::test]
async fn a_new_object_gets_the_lv_that_it_names(#[case] policy: OrphanPolicy, #[case] lv: &str) {
    let agent = Agent::start(policy).await;
    let uuid = agent.cluster.lvm.volume(VG, GONE).unwrap().uuid;
    agent.lose_object("pvc-gone");
    agent.until_noted(lv, if lv == KEPT { "in quarantine" } else { "only reported" }).await;
    let mut object = volume("pvc-back", NEW, 0);
    object["metadata"]["annotations"] = json!({"topolvm.io/adopt": lv});
    agent.cluster.api.apply_json(object);
    agent.until_ready("pvc-back").await;
    let volume = agent.cluster.lvm.volume(VG, NEW).unwrap();
    assert_eq!((agent.cluster.lvm.volumes(VG), volume.uuid), (vec![STAYS.to_owned(), NEW.to_owned()], uuid));
    assert!(volume.tags.contains(&"topolvm.io/logicalvolume=pvc-back".to_owned()), "{:?}", volume.tags);
    assert_eq!(agent.cluster.status("pvc-back")["currentSize"], json!("1Gi"));
    // The request is fulfilled
    let adopted = |object: Value| object["metadata"]["annotations"] == json!({"topolvm.io/adopted": lv});
    agent.until(|| adopted(agent.cluster.object("pvc-back")).then_some(())).await;
    agent.until_node(|node| annotation(node, "topolvm.io/orphans").is_none().then_some(())).await;
    // From then on it is a volume like others
    agent.cluster.api.delete(LV, "", "pvc-back");
    agent.until_lvs(&[STAYS]).await;
}

#[tokio::test]
async fn adoption_is_refused_for_owned_missing_small_or_foreign_lvs() {
    let agent = Agent::start(OrphanPolicy::Report).await;
    let refusal = async |name: &str, lv: &str, size: &str| {
        let mut object = volume(name, NEW, 0);
        object["metadata"]["annotations"] = json!({"topolvm.io/adopt": lv});
        object["spec"]["size"] = json!(size);
        agent.cluster.api.apply_json(object);
        let message = |object: Value| Some(object.pointer("/status/message")?.as_str()?.to_owned());
        let message = agent.until(|| message(agent.cluster.api.get_json(LV, "", name)?)).await;
        assert!(agent.cluster.object(name)["metadata"]["finalizers"].as_array().unwrap().contains(&json!(FINALIZER)));
        agent.cluster.api.delete(LV, "", name);
        agent.until(|| agent.cluster.api.get_json(LV, "", name).is_none().then_some(())).await;
        message
    };
    let owned = refusal("pvc-thief", STAYS, "1Gi").await;
    assert!(owned.contains("belongs to LogicalVolume pvc-stays"), "{owned}");
    agent.lose_object("pvc-gone");
    let absent = refusal("pvc-absent", KEPT, "1Gi").await;
    assert!(absent.contains("not found"), "{absent}");
    let small = refusal("pvc-small", GONE, "512Mi").await;
    assert!(small.contains("has 1073741824 bytes"), "{small}");
    // It would have the name of the object
    agent.cluster.lvm.add_volume(VG, "theirs", FakeVolume::thick(GIB));
    let foreign = refusal("pvc-foreign", "theirs", "1Gi").await;
    assert!(foreign.contains("UID"), "{foreign}");
    assert_eq!(agent.cluster.lvm.volumes(VG), [GONE, STAYS, "theirs"]);
}
