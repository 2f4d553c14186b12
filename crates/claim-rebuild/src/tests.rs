use std::time::Duration;

use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::LogicalVolume;
use topolvm_kube::{CacheWriter, CachedClaim, LogicalVolumeWriter, watch_all};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{
    apply_claim_on_n1, claim, node, pod, remove_node, stateful_set_on_a_node, storage_class,
};

use super::*;

const CLAIMS: &str = "persistentvolumeclaims";
const LVS: &str = "logicalvolumes.topolvm.io";
const VOLUMES: &str = "persistentvolumes";
const ON: RebuildArgs = RebuildArgs { rebuild_claims: true, rebuild_grace_period: Duration::from_mins(5) };
const OFF: RebuildArgs = RebuildArgs { rebuild_claims: false, ..ON };
/// Less than the grace period, by one look and more, and by half a look.
const EARLY: Duration = Duration::from_secs(255);
const BEFORE: Duration = Duration::from_secs(285);
/// More than the grace period and the look after it, with which the finalizer goes.
const LONG: Duration = Duration::from_mins(10);

/// The controller over a fake API server.
struct Harness {
    server: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Harness {
    fn start(server: &ApiServer, args: RebuildArgs) -> Self {
        Self::start_as(server, ApiFlavor::TopoLvm, args)
    }

    fn start_as(server: &ApiServer, flavor: ApiFlavor, args: RebuildArgs) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let client = server.client();
        let (mut nodes, mut claims) = (CacheWriter::default(), CacheWriter::default());
        let mut volumes = LogicalVolumeWriter::of_cluster();
        let events = EventPublisher::new(client.clone(), "tester", "me".to_owned());
        let metrics = ReconcileMetrics::register(&mut Registry::default());
        let context = RebuildContext {
            client: client.clone(),
            flavor,
            nodes: nodes.as_reader(),
            volumes: volumes.as_reader(),
            events,
            metrics,
        };
        let rebuild = Rebuild::new(context, args, claims.as_reader());
        let end = || shutdown.clone();
        let all_nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
        tasks.spawn("nodes", watch_all("Nodes", all_nodes, end(), move |event| nodes.apply(&event)));
        let all_volumes = Api::<LogicalVolume>::all_with(client.clone(), &flavor);
        let apply_volume = move |event| drop(volumes.apply(event));
        tasks.spawn("volumes", watch_all("LogicalVolumes", all_volumes, end(), apply_volume));
        let all_claims = Api::<PersistentVolumeClaim>::all(client);
        let apply_claim = move |event| claims.apply(&CachedClaim::from_event(flavor, &event));
        tasks.spawn("claims", watch_all("claims", all_claims, end(), apply_claim));
        let end = end();
        tasks.spawn("rebuild", async move {
            end.run_until_cancelled(rebuild.run()).await;
            Ok(())
        });
        Self { server: server.clone(), tasks, shutdown }
    }

    /// Waits until nothing is left to do that does not wait for the clock: under tokio's paused time a sleep ends when
    /// all tasks are idle.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn has(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.server.get_json(resource, namespace, name).is_some()
    }

    /// Waits until the object is gone.
    async fn gone(&self, resource: &str, namespace: &str, name: &str) {
        self.server.until(resource, namespace, name, |object| object.is_none().then_some(())).await;
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

fn taint(server: &ApiServer, ready: &str) {
    server.edit("nodes", "", "n1", |node| {
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
        node["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
    });
}

async fn is_rebuilt(harness: &Harness) -> bool {
    tokio::time::sleep(LONG).await;
    let is_gone = !harness.has(CLAIMS, "default", "data-db-0");
    assert_eq!(is_gone, !harness.has("pods", "default", "db-0"), "claim and pod go together");
    is_gone
}

#[rstest]
#[case::the_node_is_deleted("on-node-deleted", |server: &ApiServer| remove_node(server, "n1"), true)]
#[case::deleted_and_the_taint_would_do("on-out-of-service-taint", |server: &ApiServer| remove_node(server, "n1"), true)]
#[case::out_of_service("on-out-of-service-taint", |server: &ApiServer| taint(server, "Unknown"), true)]
#[case::out_of_service_and_it_runs("on-out-of-service-taint", |server: &ApiServer| taint(server, "True"), false)]
#[case::out_of_service_where_only_deletion_counts(
    "on-node-deleted", |server: &ApiServer| taint(server, "Unknown"), false
)]
#[case::not_ready_alone("on-out-of-service-taint", |server: &ApiServer| {
    server.edit("nodes", "", "n1", |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    });
}, false)]
#[case::never("never", |server: &ApiServer| remove_node(server, "n1"), false)]
#[case::not_asked_for("", |server: &ApiServer| taint(server, "Unknown"), false)]
#[tokio::test(start_paused = true)]
async fn claim_and_pod_go_only_when_the_node_is_lost_as_was_asked_for(
    #[case] rebuild: &str,
    #[case] lose: fn(&ApiServer),
    #[case] expected: bool,
) {
    let server = stateful_set_on_a_node(rebuild);
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    lose(&server);
    assert_eq!(is_rebuilt(&harness).await, expected);
    assert_eq!(harness.server.event_notes("Rebuilding").len(), if expected { 2 } else { 0 });
    let policy = &server.get_json(VOLUMES, "", "pvc-data-db-0").unwrap()["spec"]["persistentVolumeReclaimPolicy"];
    assert_eq!(*policy, json!("Delete"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_under_its_name_keeps_its_claims() {
    let server = stateful_set_on_a_node("on-node-deleted");
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    remove_node(&server, "n1");
    tokio::time::sleep(EARLY).await;
    server.apply_json(node("n1").build());
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Gone again: the grace period restarts
    remove_node(&server, "n1");
    tokio::time::sleep(EARLY).await;
    assert!(harness.has(CLAIMS, "default", "data-db-0"));
    server.apply_json(node("n1").build());
    assert!(!is_rebuilt(&harness).await);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rebuild_proof_restarts_for_a_new_node_of_the_same_name() {
    let server = stateful_set_on_a_node("on-out-of-service-taint");
    let harness = Harness::start(&server, ON);
    taint(&server, "Unknown");
    tokio::time::sleep(BEFORE).await;
    remove_node(&server, "n1");
    server.apply_json(node("n1").build());
    taint(&server, "Unknown");
    tokio::time::sleep(BEFORE).await;
    assert!(harness.has(CLAIMS, "default", "data-db-0"));
    assert!(is_rebuilt(&harness).await);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_missed_a_node_deletes_nothing() {
    let server = stateful_set_on_a_node("on-node-deleted");
    // The informer has missed n1, and the API server has it
    let n1 = server.get_json("nodes", "", "n1").unwrap();
    remove_node(&server, "n1");
    server.before_next("get", "nodes", move |server| drop(server.apply_json(n1.clone())));
    let harness = Harness::start(&server, ON);
    assert!(!is_rebuilt(&harness).await);
    harness.end().await;
}

#[rstest]
#[case::of_all_nodes(&["n1", "n2"], &["n1", "n2"])]
#[case::of_more_nodes_than_are_there(&["n1", "n3"], &["n1", "n3"])]
#[tokio::test(start_paused = true)]
async fn loss_of_too_many_nodes_is_reported_and_deletes_nothing(#[case] volumes_on: &[&str], #[case] gone: &[&str]) {
    let server = stateful_set_on_a_node("on-node-deleted");
    for &name in volumes_on.iter().filter(|name| **name != "n1") {
        let claim = format!("data-db-{name}");
        apply_claim_on_n1(&server, &claim);
        server.edit(VOLUMES, "", &format!("pvc-{claim}"), |volume| {
            let term = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
            term["matchExpressions"][0]["values"] = json!([name]);
        });
        server.edit(LVS, "", &format!("pvc-{claim}"), |volume| volume["spec"]["nodeName"] = json!(name));
    }
    for name in gone.iter().filter(|name| **name != "n3") {
        remove_node(&server, name);
    }
    let harness = Harness::start(&server, ON);
    assert!(!is_rebuilt(&harness).await);
    assert!(
        harness
            .server
            .event_notes("RebuildRefused")
            .iter()
            .any(|note| note.contains("check whether the API server has lost objects"))
    );
    harness.end().await;
}

#[rstest]
#[case::no_stateful_set(|server: &ApiServer| {
    server.delete("statefulsets", "default", "db");
}, "no StatefulSet")]
#[case::a_pod_that_it_is_not_to_have(|server: &ApiServer| {
    server.edit("statefulsets", "default", "db", |set| set["spec"]["replicas"] = json!(0));
}, "no StatefulSet")]
#[case::a_word_that_means_nothing(|server: &ApiServer| {
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"]["annotations"]["topolvm.io/rebuild"] = json!("always");
    });
}, "supported values: never")]
#[tokio::test(start_paused = true)]
async fn claim_that_cannot_be_rebuilt_stays_and_an_event_says_why(
    #[case] change: fn(&ApiServer),
    #[case] expected: &str,
) {
    let server = stateful_set_on_a_node("on-node-deleted");
    change(&server);
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    remove_node(&server, "n1");
    assert!(!is_rebuilt(&harness).await);
    let notes = harness.server.event_notes("RebuildRefused");
    assert!(notes.len() == 1 && notes[0].contains(expected), "{notes:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rebuild_keep_retains_the_volume_and_reports_an_empty_claim() {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"]["annotations"]["topolvm.io/rebuild-keep"] = json!("true");
    });
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    remove_node(&server, "n1");
    assert!(is_rebuilt(&harness).await);
    let volume = server.get_json(VOLUMES, "", "pvc-data-db-0").unwrap();
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], json!("Retain"));
    server.apply_json(claim("data-db-0").class("fast").selected_node("n2").build());
    tokio::time::sleep(LONG).await;
    let notes = harness.server.event_notes("Rebuilt");
    assert!(notes.len() == 1 && notes[0].contains("empty: Node n1 was deleted"), "{notes:?}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rebuild_interrupted_before_pod_deletion_is_resumed() {
    let server = stateful_set_on_a_node("on-node-deleted");
    remove_node(&server, "n1");
    let first = Harness::start(&server, ON);
    server.inject("delete", "pods", usize::MAX, Failure::Status(500));
    tokio::time::sleep(LONG).await;
    assert!(!server.get_json(CLAIMS, "default", "data-db-0").unwrap()["metadata"]["deletionTimestamp"].is_null());
    assert!(first.has("pods", "default", "db-0"));
    first.end().await;
    server.clear_faults();
    let next = Harness::start(&server, ON);
    assert!(is_rebuilt(&next).await);
    next.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_on_a_claim_whose_node_came_back_is_let_go() {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"]["finalizers"] = json!(["other/one", "topolvm.io/rebuilding"]);
    });
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    tokio::time::sleep(LONG).await;
    let claim = server.get_json(CLAIMS, "default", "data-db-0").unwrap();
    assert_eq!(claim["metadata"]["finalizers"], json!(["other/one"]));
    assert!(claim["metadata"]["deletionTimestamp"].is_null());
    harness.end().await;
}

/// The flag is off by now, perhaps with the rights of the component, or the API group is another one.
#[rstest]
#[case::with_rights("topolvm.io/rebuilding", true)]
#[case::without_rights("topolvm.io/rebuilding", false)]
#[case::of_the_other_group("topolvm.cybozu.com/rebuilding", true)]
#[tokio::test(start_paused = true)]
async fn held_claim_is_released_without_the_flag(#[case] finalizer: &str, #[case] may_delete_pods: bool) {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.edit(CLAIMS, "default", "data-db-0", |claim| claim["metadata"]["finalizers"] = json!([finalizer]));
    server.delete(CLAIMS, "default", "data-db-0");
    if !may_delete_pods {
        server.inject("delete", "pods", usize::MAX, Failure::Status(403));
    }
    let harness = Harness::start(&server, OFF);
    tokio::time::timeout(LONG, harness.gone(CLAIMS, "default", "data-db-0")).await.unwrap();
    assert_eq!(harness.has("pods", "default", "db-0"), !may_delete_pods);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_stateful_set_owns_is_left_to_its_owner() {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.apply_json(pod("debug").on("n1").claim("data-db-0").build());
    let harness = Harness::start(&server, ON);
    harness.settle().await;
    remove_node(&server, "n1");
    assert!(is_rebuilt(&harness).await);
    assert!(harness.has("pods", "default", "debug"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn rebuild_rechecks_a_claim_that_changes_before_deletion() {
    let server = stateful_set_on_a_node("on-node-deleted");
    remove_node(&server, "n1");
    let harness = Harness::start(&server, ON);
    tokio::time::sleep(BEFORE).await;
    server.before_next("patch", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data-db-0", |claim| {
            claim["metadata"]["annotations"]["topolvm.io/rebuild"] = json!("never");
        });
    });
    assert!(!is_rebuilt(&harness).await);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_older_api_group_has_its_own_names() {
    let server = stateful_set_on_a_node("on-node-deleted");
    let legacy = |volume: &mut Value| {
        volume["spec"]["csi"]["driver"] = json!("topolvm.cybozu.com");
        let term = &mut volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        term["matchExpressions"][0]["key"] = json!("topology.topolvm.cybozu.com/node");
    };
    server.edit(VOLUMES, "", "pvc-data-db-0", legacy);
    let class = storage_class("fast").legacy().parameter("topolvm.cybozu.com/rebuild", "on-node-deleted");
    server.apply_json(class.build());
    remove_node(&server, "n1");
    let harness = Harness::start_as(&server, ApiFlavor::Legacy, ON);
    assert!(is_rebuilt(&harness).await);
    harness.end().await;
}
