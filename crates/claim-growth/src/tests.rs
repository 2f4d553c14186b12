use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, GROWTH_ENABLED, GROWTH_INCREASE, GROWTH_LIMIT, GROWTH_THRESHOLD};
use topolvm_capacity::{MinimumAllocation, watch_classes, watch_nodes};
use topolvm_kube::{LogicalVolumeWriter, watch_all};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node, storage_class};

use super::*;

const CLAIMS: &str = "persistentvolumeclaims";
const LVS: &str = "logicalvolumes.topolvm.io";
const THRESHOLDS: &str = "topolvm.io/growth-thresholds";
const TOO_SMALL_AT: &str = "topolvm.io/too-small-at";
const GIB: u64 = 1 << 30;

/// The controller over a server with a StorageClass, a node with 100 GiB, and a claim of 1 GiB with its volume.
struct Growing {
    server: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Growing {
    fn start(class: Value, annotations: Value) -> Self {
        let server = ApiServer::new();
        server.apply_json(class);
        server.apply_json(node("n1").capacity("", 100).build());
        server.apply_json(claim(annotations));
        server.apply_json(logical_volume("pvc-1").uid("id-1").ready("id-1", "1Gi").build());
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let context = context(&server, &tasks, &shutdown);
        let growth = Growth::new(context);
        let (claims, end) = (Api::<PersistentVolumeClaim>::all(server.client()), shutdown.clone());
        let mut subscriber = growth.subscriber();
        tasks.spawn("claims", watch_all("claims", claims, end, move |event| subscriber(&event)));
        let end = shutdown.clone();
        tasks.spawn("growth", async move {
            end.run_until_cancelled(growth.run()).await;
            Ok(())
        });
        Self { server, tasks, shutdown }
    }

    /// Waits until the controller has looked at everything: under tokio's paused time a sleep ends when all tasks
    /// are idle.
    async fn settle(&self) {
        tokio::time::sleep(SETTLING * 3).await;
    }

    fn volume(&self) -> Value {
        self.server.get_json(LVS, "", "pvc-1").unwrap()
    }

    fn thresholds(&self) -> Value {
        self.volume()["metadata"]["annotations"][THRESHOLDS].clone()
    }

    /// The size that the claim asks for.
    fn requested(&self) -> Value {
        self.claim()["spec"]["resources"]["requests"]["storage"].clone()
    }

    fn claim(&self) -> Value {
        self.server.get_json(CLAIMS, "default", "data").unwrap()
    }

    /// The agent says that the volume is too small at this size.
    async fn report(&self, bytes: u64) {
        let mut volume = self.volume();
        volume["metadata"]["annotations"][TOO_SMALL_AT] = json!(bytes.to_string());
        self.server.apply_json(volume);
        self.settle().await;
    }

    /// csi-resizer, the agent and kubelet have grown the volume to what the claim asks for.
    async fn finish_growth(&self) {
        let (mut claim, mut volume) = (self.claim(), self.volume());
        let size = self.requested();
        volume["spec"]["size"] = size.clone();
        volume["status"]["currentSize"] = size.clone();
        self.server.apply_json(volume);
        claim["status"]["capacity"]["storage"] = size;
        self.server.apply_json(claim);
        self.settle().await;
    }

    fn events(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json("events.events.k8s.io");
        events.iter().map(|event| (text(&event["reason"]), text(&event["note"]))).collect()
    }

    fn reasons(&self) -> Vec<String> {
        self.events().into_iter().map(|(reason, _)| reason).collect()
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// The dependencies of the controller, with watches of all but the claims.
fn context(server: &ApiServer, tasks: &Tasks, shutdown: &CancellationToken) -> GrowthContext {
    let (flavor, client) = (ApiFlavor::TopoLvm, server.client());
    let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
    let capacity = Capacity::new(flavor, minimums, || jiff::Timestamp::UNIX_EPOCH);
    tasks.spawn("nodes", watch_nodes(capacity.clone(), client.clone(), shutdown.clone()));
    tasks.spawn("classes", watch_classes(capacity.clone(), client.clone(), shutdown.clone()));
    let mut writer = LogicalVolumeWriter::of_cluster();
    let (change, volumes_changed) = watch::channel(());
    let (volumes, reserved) = (writer.as_reader(), capacity.clone());
    let all = Api::<LogicalVolume>::all_with(client.clone(), &flavor);
    let watching = watch_all("volumes", all, shutdown.clone(), move |event| {
        reserved.apply_volume(&event);
        writer.apply(event);
        change.send_replace(());
    });
    tasks.spawn("volumes", watching);
    let events = EventPublisher::new(client.clone(), "tester", "me".to_owned());
    let metrics = ReconcileMetrics::register(&mut Registry::default());
    GrowthContext { client, flavor, volumes, volumes_changed, capacity, events, metrics }
}

fn growing_class() -> Value {
    let mut class = json!(storage_class("fast").build());
    class["apiVersion"] = json!("storage.k8s.io/v1");
    class["kind"] = json!("StorageClass");
    class["metadata"]["annotations"] = json!({GROWTH_ENABLED: "true"});
    class
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
fn claim(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"storageClassName": "fast", "volumeName": "pvc-1", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

fn limited(limit: &str) -> Value {
    json!({GROWTH_LIMIT: limit})
}

#[tokio::test(start_paused = true)]
async fn claim_grows_in_steps_to_its_limit_with_one_limit_event() {
    let annotations = json!({GROWTH_LIMIT: "4Gi", GROWTH_THRESHOLD: "20%", GROWTH_INCREASE: "1Gi"});
    let growing = Growing::start(growing_class(), annotations);
    growing.settle().await;
    assert_eq!(growing.thresholds(), "space=20%,inodes=10%");
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("1Gi"), 0));
    for (bytes, next) in [(GIB, "2Gi"), (2 * GIB, "3Gi"), (3 * GIB, "4Gi")] {
        growing.report(bytes).await;
        assert_eq!(growing.requested(), next);
        growing.finish_growth().await;
    }
    growing.report(4 * GIB).await;
    growing.report(4 * GIB).await;
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("4Gi"), 3));
    assert_eq!(growing.reasons(), ["Growing", "Growing", "Growing", "GrowthAtLimit"]);
    let notes = growing.events();
    assert_eq!(notes[0].1, "the volume is nearly full; requested 2Gi instead of 1Gi; the limit is 4Gi");
    assert!(notes[3].1.contains("4Gi; raise the limit"), "{notes:?}");
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_more_is_asked_for_before_a_growth_has_ended() {
    let growing = Growing::start(growing_class(), limited("10Gi"));
    growing.report(GIB).await;
    assert_eq!(growing.requested(), "2Gi");
    // The LV has grown, and kubelet has yet to grow the filesystem, which is as full as before
    let mut volume = growing.volume();
    volume["status"]["currentSize"] = json!("2Gi");
    growing.server.apply_json(volume);
    growing.report(2 * GIB).await;
    let mut claim = growing.claim();
    claim["status"]["conditions"] = json!([{"type": "FileSystemResizePending", "status": "True"}]);
    growing.server.apply_json(claim);
    tokio::time::sleep(Duration::from_hours(5)).await;
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("2Gi"), 1));
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn growth_needs_the_annotations_of_class_and_claim() {
    let plain = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
                       "provisioner": "topolvm.io", "allowVolumeExpansion": true});
    for (class, annotations) in [(plain, limited("10Gi")), (growing_class(), json!({}))] {
        let growing = Growing::start(class, annotations);
        growing.report(GIB).await;
        assert_eq!((growing.requested(), growing.thresholds()), (json!("1Gi"), Value::Null));
        assert_eq!((growing.server.count("patch", CLAIMS), growing.server.count("patch", LVS)), (0, 0));
        assert_eq!(growing.events(), []);
        growing.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_limit_is_taken_away_is_measured_no_more() {
    let growing = Growing::start(growing_class(), limited("10Gi"));
    growing.settle().await;
    assert_eq!(growing.thresholds(), "space=10%,inodes=10%");
    growing.server.apply_json(claim(json!({})));
    growing.settle().await;
    assert_eq!(growing.thresholds(), Value::Null);
    growing.report(GIB).await;
    assert_eq!(growing.requested(), "1Gi");
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn growth_refused_by_a_quota_is_reported_and_backs_off() {
    let growing = Growing::start(growing_class(), limited("10Gi"));
    growing.settle().await;
    growing.server.fail_next("patch", CLAIMS, 3, 403);
    growing.report(GIB).await;
    assert_eq!(growing.reasons(), ["GrowthRefused"]);
    growing.report(GIB).await;
    assert_eq!(growing.server.count("patch", CLAIMS), 1, "changes do not cut a pause short");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(growing.server.count("patch", CLAIMS), 2);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("1Gi"), 2));
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("2Gi"), 4));
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn growth_waits_until_the_node_has_free_space() {
    let growing = Growing::start(growing_class(), limited("10Gi"));
    growing.server.apply_json(node("n1").capacity_bytes("", GIB - 1).build());
    growing.report(GIB).await;
    assert_eq!(
        (growing.reasons(), growing.server.count("patch", CLAIMS)),
        (vec!["GrowthWithoutFreeSpace".to_owned()], 0)
    );
    assert!(
        growing.events()[0].1.contains("node n1 has only 1073741823 of the 1073741824 bytes"),
        "{:?}",
        growing.events()
    );
    growing.server.apply_json(node("n1").capacity("", 5).build());
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(growing.requested(), "2Gi");
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn growth_yields_to_a_concurrent_expansion_of_the_claim() {
    let growing = Growing::start(growing_class(), limited("10Gi"));
    growing.settle().await;
    growing.server.before_next("patch", CLAIMS, |server| {
        let mut claim = server.get_json(CLAIMS, "default", "data").unwrap();
        claim["spec"]["resources"]["requests"]["storage"] = json!("5Gi");
        server.apply_json(claim);
    });
    growing.report(GIB).await;
    growing.report(GIB).await;
    assert_eq!((growing.requested(), growing.server.count("patch", CLAIMS)), (json!("5Gi"), 1));
    assert_eq!(growing.events(), []);
    growing.end().await;
}

#[tokio::test(start_paused = true)]
async fn mistakes_of_class_and_claim_are_reported_once_with_a_fix() {
    let mut class = growing_class();
    class["allowVolumeExpansion"] = json!(false);
    let no_expansion = (class, limited("10Gi"), "but not allowVolumeExpansion: true; set allowVolumeExpansion");
    let no_amount = (
        growing_class(),
        json!({GROWTH_LIMIT: "10Gi", GROWTH_INCREASE: "lots"}),
        "increase: \"lots\" is not a valid amount",
    );
    for (class, annotations, expected) in [no_expansion, no_amount] {
        let growing = Growing::start(class, annotations);
        growing.report(GIB).await;
        growing.report(GIB).await;
        let events = growing.events();
        assert_eq!((growing.reasons(), growing.requested()), (vec!["GrowthMisconfigured".to_owned()], json!("1Gi")));
        assert!(events[0].1.contains(expected), "{events:?}");
        growing.end().await;
    }
}
