//! Tests of the rules that all controllers share. Each controller has its own tests beside it.

pub(super) mod harness;

use claim_growth::GrowthArgs;
use serde_json::{Value, json};
use topolvm_capacity::watch_classes;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{claim, logical_volume, node, pod, storage_class};

use crate::added_controllers::add_growth;
use harness::{CLEANUP, DEFAULTS, Harness};

const CLAIMS: &str = "persistentvolumeclaims";
const LVS: &str = "logicalvolumes.topolvm.io";
const CONTROLLERS: [&str; 4] = ["filesystemresize", "node", "persistentvolumeclaim", "stalelogicalvolume"];

/// A claim whose filesystem waits to be grown, and the pod that uses it.
fn add_waiting_claim(server: &ApiServer) {
    let mut waiting = json!(claim("grown").build());
    waiting["metadata"]["annotations"] = json!({"volume.kubernetes.io/storage-provisioner": "topolvm.io"});
    waiting["status"] = json!({"conditions": [{"type": "FileSystemResizePending", "status": "True"}]});
    server.apply_json(waiting);
    server.apply_json(pod("user").claim("grown").build());
}

/// A volume that was deleted a day ago and whose node is not there any more.
fn add_stale_volume(server: &ApiServer) {
    let volume = logical_volume("pvc-1").on("gone").finalizer("topolvm.io/logicalvolume").build();
    let mut volume = json!(volume);
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    server.apply_json(volume);
}

/// The number of reconciles of a controller with this result, from the metrics page.
fn count(page: &str, controller: &str, result: &str) -> Option<Value> {
    let series = format!("topolvm_reconcile_seconds_count{{controller=\"{controller}\",result=\"{result}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&series))?;
    serde_json::from_str(value).ok()
}

#[tokio::test(start_paused = true)]
async fn reconcile_metrics_count_success_and_failure_per_controller() {
    let server = ApiServer::new();
    server.apply_json(node("n1").finalizer("topolvm.io/node").build());
    server.delete("nodes", "", "n1");
    server.apply_json(claim("data").finalizer("topolvm.io/pvc").build());
    add_waiting_claim(&server);
    add_stale_volume(&server);
    for resource in ["nodes", CLAIMS, "pods", LVS] {
        server.fail_next("patch", resource, 1, 500);
    }
    let harness = Harness::start(&server, DEFAULTS);
    server.wait_for_requests("patch", "pods", 1).await;
    // The others try again by themselves
    server.edit(CLAIMS, "default", "grown", |claim| claim["status"]["capacity"] = json!({"storage": "2Gi"}));
    tokio::time::sleep(CLEANUP.cleanup_interval * 3).await;
    let page = harness.metrics();
    for (controller, result) in CONTROLLERS.iter().flat_map(|name| [(name, "ok"), (name, "error")]) {
        assert_eq!(count(&page, controller, result), Some(json!(1)), "{controller}, {result}: {page}");
    }
    harness.end().await;
}

/// Events of claims reach the tasks that the program adds.
#[tokio::test(start_paused = true)]
async fn claims_grow_by_the_task_that_was_added() {
    let server = ApiServer::new();
    let mut class = json!(storage_class("fast").build());
    class["metadata"]["annotations"] = json!({"resize.topolvm.io/enabled": "true"});
    server.apply_json(class);
    server.apply_json(node("n1").capacity("", 100).build());
    server.apply_json(logical_volume("pvc-1").uid("id-1").ready("id-1", "1Gi").build());
    let mut growing = json!(claim("data").class("fast").bound_to("pvc-1").build());
    growing["metadata"]["annotations"] = json!({"resize.topolvm.io/storage_limit": "2Gi"});
    growing["spec"]["resources"] = json!({"requests": {"storage": "1Gi"}});
    growing["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    server.apply_json(growing);
    let mut capacity = None;
    let harness = Harness::start_composed(&server, |controllers| {
        capacity = Some(controllers.capacity.clone());
        add_growth(controllers, GrowthArgs { grow_claims: true });
    });
    let classes = watch_classes(capacity.unwrap(), server.client(), harness.shutdown.clone());
    harness.tasks.spawn("classes", classes);
    let thresholds =
        |volume: Option<&Value>| volume?["metadata"]["annotations"].get("topolvm.io/growth-thresholds").cloned();
    assert_eq!(server.until(LVS, "", "pvc-1", thresholds).await, "space=10%,inodes=10%");
    harness.end().await;
}
