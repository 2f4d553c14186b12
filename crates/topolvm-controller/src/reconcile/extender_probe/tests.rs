use serde_json::Value;
use topolvm_testkit::ApiServer;

use super::super::tests::harness::{DEFAULTS, Harness};
use super::*;
use crate::scheduling::{ProbeSettings, Scheduling, SchedulingConfig, SchedulingMode};

const INTERVAL: Duration = Duration::from_mins(5);
const CALLED: &str = "0/1 nodes are available: 1 no capacity annotation.";
const NOT_CALLED: &str = "0/1 nodes are available: 1 Insufficient topolvm.io/capacity.";
const NO_NODE: &str = "no nodes available to schedule pods";

/// The leader on a server, with an informer of the outcome.
struct Leader {
    server: ApiServer,
    harness: Harness,
}

impl Leader {
    fn start(server: &ApiServer) -> Self {
        let harness = Harness::start_with(server, ApiFlavor::TopoLvm, DEFAULTS, |client, registry, tasks, shutdown| {
            let settings = ProbeSettings { namespace: "system".to_owned(), interval: INTERVAL };
            let extender = Some(ExtenderInformer::start(client, &settings.namespace, registry, tasks, shutdown));
            let config = SchedulingConfig { mode: Some(SchedulingMode::Extender), probe: Some(settings) };
            Scheduling { config, extender, ..Scheduling::default() }
        });
        Self { server: server.clone(), harness }
    }

    /// Waits for a probe pod, and answers as kube-scheduler does.
    async fn answer(&self, message: &str) {
        let untried = |pod: Option<&Value>| pod.filter(|pod| pod["status"]["conditions"].is_null()).map(drop);
        self.server.until("pods", "system", PROBE_POD, untried).await;
        self.server.edit("pods", "system", PROBE_POD, |pod| {
            pod["status"] = condition(message);
        });
        self.server.until("pods", "system", PROBE_POD, |pod| pod.is_none().then_some(())).await;
        self.harness.settle().await;
    }

    /// Returns both values of the ConfigMap.
    fn outcome(&self) -> (Value, String) {
        let data = self.server.get_json("configmaps", "system", EXTENDER_PROBE).unwrap()["data"].clone();
        (data["extender-proven"].clone(), data["reason"].as_str().unwrap().to_owned())
    }

    fn writes(&self) -> usize {
        self.server.count("create", "configmaps") + self.server.count("patch", "configmaps")
    }
}

/// The reason in the ConfigMap, if that is there.
fn reason(map: Option<&Value>) -> Option<String> {
    map.map(|map| map["data"]["reason"].as_str().unwrap_or_default().to_owned())
}

fn condition(message: &str) -> Value {
    json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    }]})
}

#[tokio::test(start_paused = true)]
async fn extender_probe_result_follows_the_latest_answer() {
    let leader = Leader::start(&ApiServer::new());
    leader.answer(NOT_CALLED).await;
    let (proven, reason) = leader.outcome();
    assert_eq!(proven, "false");
    assert!(reason.contains("does not call topolvm-scheduler") && reason.ends_with(NOT_CALLED), "{reason}");
    let asked = tokio::time::Instant::now();
    leader.answer(CALLED).await;
    assert!(asked.elapsed() < UNPROVEN_INTERVAL * 2, "{:?}", asked.elapsed());
    assert_eq!(leader.outcome(), ("true".into(), String::new()));
    let asked = tokio::time::Instant::now();
    leader.answer(NOT_CALLED).await;
    assert!(asked.elapsed() + UNPROVEN_INTERVAL >= INTERVAL, "{:?}", asked.elapsed());
    assert_eq!(leader.outcome().0, "false");
    assert!(leader.harness.metrics().contains("topolvm_extender_proven 0"));
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_the_outcome_is_the_same() {
    let leader = Leader::start(&ApiServer::new());
    leader.answer(CALLED).await;
    let writes = leader.writes();
    leader.answer(CALLED).await;
    leader.answer(CALLED).await;
    assert_eq!(leader.writes(), writes);
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_proof_outlives_two_unclear_answers_and_not_three() {
    let leader = Leader::start(&ApiServer::new());
    leader.answer(CALLED).await;
    for proven in ["true", "true", "false"] {
        leader.answer(NO_NODE).await;
        assert_eq!(leader.outcome().0, proven);
    }
    assert!(leader.outcome().1.contains(NO_NODE));
    leader.answer(CALLED).await;
    assert_eq!(leader.outcome().0, "true");
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_kube_scheduler_that_does_not_answer_proves_nothing() {
    let server = ApiServer::new();
    let leader = Leader::start(&server);
    let reason = server.until("configmaps", "system", EXTENDER_PROBE, reason).await;
    assert!(reason.contains("did not try to schedule the probe pod within 30s"), "{reason}");
    assert!(server.get_json("pods", "system", PROBE_POD).is_none());
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_an_earlier_leader_has_left_behind_is_replaced() {
    let server = ApiServer::new();
    let mut left = json!(probe_pod(ApiFlavor::TopoLvm));
    left["metadata"]["namespace"] = json!("system");
    left["metadata"]["uid"] = json!("of-the-earlier-leader");
    left["status"] = condition(NOT_CALLED);
    server.apply_json(left);
    let leader = Leader::start(&server);
    leader.answer(CALLED).await;
    assert_eq!(leader.outcome().0, "true");
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn extender_probe_pod_is_deleted_when_the_leader_ends() {
    let server = ApiServer::new();
    let leader = Leader::start(&server);
    server.until("pods", "system", PROBE_POD, |pod| pod.map(drop)).await;
    leader.harness.end().await;
    assert!(server.get_json("pods", "system", PROBE_POD).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_begins_with_what_the_one_before_has_proven() {
    let server = ApiServer::new();
    let leader = Leader::start(&server);
    leader.answer(CALLED).await;
    leader.harness.end().await;
    let leader = Leader::start(&server);
    leader.answer(NO_NODE).await;
    assert_eq!(leader.outcome().0, "true");
    leader.harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn missing_permission_is_the_reported_reason() {
    let server = ApiServer::new();
    server.fail_next("create", "pods", 1, 403);
    let leader = Leader::start(&server);
    let reason = server.until("configmaps", "system", EXTENDER_PROBE, reason).await;
    assert!(reason.contains("cannot create topolvm-extender-probe in the namespace system"), "{reason}");
    leader.harness.end().await;
}
