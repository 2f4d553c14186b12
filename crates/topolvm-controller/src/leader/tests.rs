use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use topolvm_runtime::Tasks;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;

use super::lease_client::{LeaseError, RELEASE_TIMEOUT};
use super::*;

const TIMING: ElectionTiming = ElectionTiming {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// Many replicas on one API server, and who of them leads.
struct Harness {
    server: ApiServer,
    leaders: Arc<Mutex<Vec<String>>>,
}

/// One replica.
struct Replica {
    tasks: Tasks,
    shutdown: CancellationToken,
    is_leader: Gauge,
}

impl Harness {
    fn new() -> Self {
        Self { server: ApiServer::new(), leaders: Arc::default() }
    }

    fn replica(&self, identity: &str) -> Replica {
        let lease = LeaseName { namespace: Some("ns".to_owned()), name: "topolvm".to_owned() };
        let status = LeaderStatus::default();
        let election =
            Election::new(&self.server.client(), lease, identity.to_owned(), TIMING, clock_of_this_machine, &status);
        let is_leader = election.is_leader.clone();
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let (leaders, identity) = (Arc::clone(&self.leaders), identity.to_owned());
        let work = move |term: CancellationToken| {
            let (leaders, identity) = (Arc::clone(&leaders), identity.clone());
            async move {
                leaders.lock().unwrap().push(identity.clone());
                term.cancelled().await;
                leaders.lock().unwrap().retain(|leader| *leader != identity);
                Ok(())
            }
        };
        tasks.spawn("election", election.run(shutdown.clone(), work));
        Replica { tasks, shutdown, is_leader }
    }

    fn leaders(&self) -> Vec<String> {
        self.leaders.lock().unwrap().clone()
    }

    fn lease(&self) -> Value {
        self.server.get_json("leases", "ns", "topolvm").unwrap()["spec"].clone()
    }

    /// A Lease as TopoLVM's controller leaves it.
    fn held_by_another(&self) {
        self.server.apply_json(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "topolvm", "namespace": "ns", "labels": {"a": "b"}},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 3,
                     "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"},
        }));
    }

    fn renewed_by_another(&self, second: u32) {
        let time = format!("2020-01-01T00:00:{second:02}.000000Z");
        self.server.edit("leases", "ns", "topolvm", |lease| lease["spec"]["renewTime"] = json!(time));
    }
}

impl Replica {
    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// Years away from the clock that the other holder writes. It never stands still, or a renewal would change nothing.
fn clock_of_this_machine() -> Timestamp {
    static SECONDS: AtomicI64 = AtomicI64::new(1_767_225_600);
    Timestamp::from_second(SECONDS.fetch_add(1, Ordering::Relaxed)).unwrap()
}

/// Under tokio's paused time nothing is left to do before this returns.
async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn leader_election_has_one_leader_and_replaces_it_at_once() {
    let harness = Harness::new();
    let first = harness.replica("a");
    seconds(1).await;
    assert_eq!(harness.leaders(), ["a"]);
    assert_eq!(first.is_leader.get(), 1);
    assert_eq!(harness.lease()["holderIdentity"], "a");
    let others = [harness.replica("b"), harness.replica("c")];
    seconds(120).await;
    assert_eq!(harness.leaders(), ["a"]);

    first.end().await;
    seconds(1).await;
    let [leader] = &harness.leaders()[..] else { panic!("{:?}", harness.leaders()) };
    assert_eq!(harness.lease()["holderIdentity"], **leader);
    assert_eq!(harness.lease()["leaseTransitions"], 1);
    for other in others {
        other.end().await;
    }
    assert_eq!(harness.lease()["holderIdentity"], Value::Null);
    assert_eq!(harness.leaders(), Vec::<String>::new());
}

/// With a clock that advances between two readings, unlike that of the other tests.
#[tokio::test]
async fn lease_without_a_holder_is_acquired_at_once() {
    let harness = Harness::new();
    harness.held_by_another();
    harness.server.edit("leases", "ns", "topolvm", |lease| lease["spec"]["holderIdentity"] = json!(""));
    let replica = harness.replica("a");
    let is_ours = |lease: Option<&Value>| (lease?["spec"]["holderIdentity"] == "a").then_some(());
    harness.server.until("leases", "ns", "topolvm", is_ours).await;
    assert_eq!(harness.server.count("get", "leases"), 1);
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn lease_of_topolvm_expires_only_if_unchanged_for_its_duration() {
    let harness = Harness::new();
    harness.held_by_another();
    let replica = harness.replica("a");
    for second in 1..=30 {
        seconds(2).await;
        harness.renewed_by_another(second);
        assert_eq!(harness.leaders(), Vec::<String>::new());
    }
    seconds(14).await;
    assert_eq!(harness.leaders(), Vec::<String>::new());
    seconds(2).await;
    assert_eq!(harness.leaders(), ["a"]);
    assert_eq!(harness.lease()["leaseTransitions"], 4);
    let lease = harness.server.get_json("leases", "ns", "topolvm").unwrap();
    assert_eq!(lease["metadata"]["labels"], json!({"a": "b"}));
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn renewals_are_noticed_without_the_watch() {
    let harness = Harness::new();
    harness.held_by_another();
    harness.server.fail_next("list", "leases", 1000, 403);
    harness.server.fail_next("watch", "leases", 1000, 403);
    let replica = harness.replica("a");
    for second in 1..=30 {
        seconds(2).await;
        harness.renewed_by_another(second);
    }
    assert_eq!(harness.leaders(), Vec::<String>::new());
    seconds(40).await;
    assert_eq!(harness.leaders(), ["a"]);
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_right_before_the_acquisition_wins() {
    let harness = Harness::new();
    harness.held_by_another();
    let server = harness.server.clone();
    server.before_next("update", "leases", |server| {
        server
            .edit("leases", "ns", "topolvm", |lease| lease["spec"]["renewTime"] = json!("2020-01-01T00:00:59.000000Z"));
    });
    let replica = harness.replica("a");
    seconds(16).await;
    assert_eq!(server.count("update", "leases"), 1);
    assert_eq!(harness.leaders(), Vec::<String>::new());
    assert_eq!(harness.lease()["holderIdentity"], "other");
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn leader_stops_in_an_api_outage_before_its_lease_expires() {
    let harness = Harness::new();
    let replica = harness.replica("a");
    seconds(5).await;
    harness.server.disconnect();
    seconds(8).await;
    assert_eq!(harness.leaders(), ["a"], "a short outage is no reason to stop");
    seconds(3).await;
    assert_eq!(harness.leaders(), Vec::<String>::new());
    assert_eq!(replica.is_leader.get(), 0);
    harness.server.reconnect();
    seconds(20).await;
    assert_eq!(harness.leaders(), ["a"]);
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_costs_one_attempt_and_not_the_lease() {
    let harness = Harness::new();
    let replica = harness.replica("a");
    seconds(1).await;
    harness.server.inject("update", "leases", 1, Failure::Hang);
    seconds(60).await;
    assert_eq!(harness.leaders(), ["a"]);
    harness.server.inject("update", "leases", usize::MAX, Failure::Hang);
    seconds(11).await;
    assert_eq!(harness.leaders(), Vec::<String>::new());
    harness.server.clear_faults();
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_and_changed_labels_do_not_end_the_term() {
    let harness = Harness::new();
    let replica = harness.replica("a");
    seconds(1).await;
    harness.server.inject("update", "leases", 1, Failure::LostAnswer);
    seconds(5).await;
    harness.server.edit("leases", "ns", "topolvm", |lease| lease["metadata"]["labels"] = json!({"x": "y"}));
    seconds(60).await;
    assert_eq!(harness.leaders(), ["a"]);
    assert_eq!(harness.lease()["leaseTransitions"], json!(0));
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn leader_whose_lease_is_taken_or_deleted_must_acquire_it_again() {
    let harness = Harness::new();
    let replica = harness.replica("a");
    seconds(1).await;
    harness.server.edit("leases", "ns", "topolvm", |lease| lease["spec"]["holderIdentity"] = json!("thief"));
    seconds(2).await;
    assert_eq!(harness.leaders(), Vec::<String>::new());
    seconds(20).await;
    assert_eq!(harness.leaders(), ["a"], "the thief never renewed");
    harness.server.delete("leases", "ns", "topolvm");
    seconds(2).await;
    seconds(2).await;
    assert_eq!(harness.leaders(), ["a"], "a new Lease is made");
    assert_eq!(harness.server.count("create", "leases"), 2);
    replica.end().await;
}

#[tokio::test(start_paused = true)]
async fn election_ends_with_the_controller_error_and_releases_lease() {
    let harness = Harness::new();
    let lease = LeaseName { namespace: Some("ns".to_owned()), name: "topolvm".to_owned() };
    let client = harness.server.client();
    let election =
        Election::new(&client, lease, "a".to_owned(), TIMING, clock_of_this_machine, &LeaderStatus::default());
    let leading = Box::pin(election.run(CancellationToken::new(), async |_| anyhow::bail!("no disk")));
    let error = leading.await.unwrap_err();
    assert_eq!(error.to_string(), "no disk");
    assert_eq!(harness.lease()["holderIdentity"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_does_not_hold_up_the_end() {
    let harness = Harness::new();
    let replica = harness.replica("a");
    seconds(1).await;
    harness.server.inject("*", "leases", usize::MAX, Failure::Hang);
    let started = tokio::time::Instant::now();
    replica.end().await;
    assert!(started.elapsed() <= RELEASE_TIMEOUT, "{:?}", started.elapsed());
}

#[test]
fn lease_error_blames_the_role_only_if_it_forbids() {
    let said = |code, reason: &str| {
        let status = kube::core::Status::failure("", reason).with_code(code).boxed();
        let source = Box::new(kube::Error::Api(status));
        LeaseError::Api { action: "renew", name: "l".to_owned(), source }.to_string()
    };
    assert_eq!(said(401, "Unauthorized"), "cannot renew Lease l");
    assert!(said(403, "Forbidden").contains("in the Role"));
}
