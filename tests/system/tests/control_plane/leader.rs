//! Leader election between two replicas, and with a client-go program that contends for the same Lease, as TopoLVM's
//! controller does.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};

use crate::Body;
use crate::fixture::{Fixture, LV, spec};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("second_replica_leads_when_the_leader_stops_or_is_killed", take_over),
    ("controller_and_client_go_respect_each_others_lease", client_go),
];

const SECOND: &str = "topolvm-controller-2";
/// Process name of kube-scheduler, which uses client-go's leader election as TopoLVM's controller does, and schedules
/// no pod here.
const CONTENDER: &str = "contender";
/// Addresses at which the replicas serve metrics.
const METRICS: [&str; 2] = ["127.0.0.1:8080", "127.0.0.1:8090"];
/// Flags of a leader election that tolerates short pauses of the machine.
const PATIENT_ELECTION: [&str; 3] = [
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=500ms",
];
/// Lease duration in `PATIENT_ELECTION`.
const LEASE_SECONDS: i32 = 6;
/// Time for a process to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// Lease duration that is longer than any test.
const LONG_DURATION: &str = "600s";

fn take_over(fixture: &Fixture) -> Result<()> {
    run_and_restore(fixture, stop_and_kill_replicas)
}

fn client_go(fixture: &Fixture) -> Result<()> {
    run_and_restore(fixture, contend_with_client_go)
}

/// Runs a test, and returns when the usual controller leads and no other program contends for the Lease, also after a
/// failure.
fn run_and_restore(fixture: &Fixture, body: fn(&Fixture) -> Result<()>) -> Result<()> {
    fixture.cluster.stop(CONTROLLER, GRACE)?;
    let done = topolvm::start_controller(&fixture.cluster, &patient_spec()?).and_then(|()| body(fixture));
    for other in [SECOND, CONTENDER] {
        fixture.cluster.stop(other, Duration::ZERO)?;
    }
    fixture.cluster.stop(CONTROLLER, GRACE)?;
    topolvm::start_controller(&fixture.cluster, &spec(&[])?)?;
    fixture.cluster.ready(CONTROLLER, || {
        ensure!(topolvm::is_leading(&fixture.cluster, METRICS[0])?, "another one's Lease has not run out");
        Ok(())
    })?;
    done?;
    fixture.check_rights()
}

fn patient_spec() -> Result<TopolvmSpec> {
    Ok(TopolvmSpec { controller_arguments: PATIENT_ELECTION.map(str::to_owned).into(), ..spec(&[])? })
}

fn stop_and_kill_replicas(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let first = wait_for_patient_holder(fixture)?;
    start_second(fixture)?;
    wait_for_renewals(fixture, &first)?;
    ensure!(read_leading(fixture)? == [true, false], "the replicas lead: {:?}", read_leading(fixture)?);

    cluster.stop(CONTROLLER, GRACE)?;
    let second = wait_for_other_holder(fixture, &first.holder)?;
    ensure!(second.transitions == first.transitions + 1, "{first:?}, then {second:?}");
    check_reconciles(fixture, "after-stop")?;
    topolvm::start_controller(cluster, &patient_spec()?)?;
    let last = wait_for_renewals(fixture, &second)?;
    ensure!(read_leading(fixture)? == [false, true], "the replicas lead: {:?}", read_leading(fixture)?);

    cluster.stop(SECOND, Duration::ZERO)?;
    let third = wait_for_expiry(fixture, &last)?;
    ensure!(third.holder != first.holder, "an identity was used again");
    check_reconciles(fixture, "after-kill")
}

fn contend_with_client_go(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let ours = wait_for_patient_holder(fixture)?;
    start_contender(fixture)?;
    let last = wait_for_renewals(fixture, &ours)?;
    cluster.stop(CONTROLLER, Duration::ZERO)?;
    let theirs = wait_for_expiry(fixture, &last)?;
    wait_for_log(fixture, "successfully acquired lease")?;

    topolvm::start_controller(cluster, &patient_spec()?)?;
    let last = wait_for_renewals(fixture, &theirs)?;
    cluster.stop(CONTENDER, Duration::ZERO)?;
    let ours = wait_for_expiry(fixture, &last)?;
    check_reconciles(fixture, "after-contender")?;

    // A Lease with a long duration is released when its holder is stopped
    cluster.stop(CONTROLLER, GRACE)?;
    let arguments = ["--leader-election-lease-duration", LONG_DURATION].map(str::to_owned).into();
    topolvm::start_controller(cluster, &TopolvmSpec { controller_arguments: arguments, ..spec(&[])? })?;
    let ours = wait_for_other_holder(fixture, &ours.holder)?;
    ensure!(ours.seconds == 600, "{ours:?}");
    start_contender(fixture)?;
    cluster.stop(CONTROLLER, GRACE)?;
    let theirs = wait_for_other_holder(fixture, &ours.holder)?;
    ensure!(theirs.transitions == ours.transitions + 1, "{ours:?}, then {theirs:?}");
    Ok(())
}

fn start_second(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let socket = cluster.directory().join("controller/second.sock");
    let mut command = topolvm::controller_command(cluster, &patient_spec()?, &socket)?;
    command.args([&format!("--metrics-bind-address={}", METRICS[1]), "--health-probe-bind-address="]);
    cluster.spawn(SECOND, &command)?;
    // It serves CSI whether or not it leads
    cluster.ready(SECOND, || UnixStream::connect(&socket).context("no socket yet")).map(drop)
}

/// Starts kube-scheduler with our Lease, and returns when it tries to acquire it.
fn start_contender(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let config = cluster.directory().join("contender.yaml");
    let text = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": cluster.inner_kubeconfig()},
        "leaderElection": {
            "leaderElect": true, "resourceLock": "leases",
            "resourceName": "topolvm", "resourceNamespace": "topolvm-system",
            "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "500ms",
        },
        "profiles": [{"schedulerName": "nobodys"}],
    });
    fs::write(&config, text.to_string()).context("write the configuration of kube-scheduler")?;
    let mut command = cluster.command(cluster.tool("kube-scheduler"));
    command.arg("--config").arg(config).args(["--secure-port=0", "-v=2"]);
    if cluster.log(CONTENDER).exists() {
        fs::remove_file(cluster.log(CONTENDER)).context("remove the log of the last contender")?;
    }
    cluster.spawn(CONTENDER, &command)?;
    wait_for_log(fixture, "attempting to acquire leader lease")
}

/// Waits until the contender has logged this text.
fn wait_for_log(fixture: &Fixture, words: &str) -> Result<()> {
    fixture.cluster.ready(CONTENDER, || {
        let log = fs::read_to_string(fixture.cluster.log(CONTENDER))?.to_lowercase();
        ensure!(log.contains(words), "it has not said {words:?}");
        Ok(())
    })
}

/// Holder and times in the Lease.
#[derive(Debug)]
struct LeaseState {
    holder: String,
    transitions: i32,
    seconds: i32,
    acquired: Timestamp,
    renewed: Timestamp,
}

/// Reads the Lease; an error if it has no holder.
fn read_lease(fixture: &Fixture) -> Result<LeaseState> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/topolvm-system/leases/topolvm";
    let lease: Lease = fixture.cluster.get(path)?;
    let LeaseSpec { holder_identity, lease_transitions, lease_duration_seconds, acquire_time, renew_time, .. } =
        lease.spec.context("an empty Lease")?;
    Ok(LeaseState {
        holder: holder_identity.filter(|holder| !holder.is_empty()).context("the Lease has no holder")?,
        transitions: lease_transitions.context("no leaseTransitions")?,
        seconds: lease_duration_seconds.context("no leaseDurationSeconds")?,
        acquired: acquire_time.context("no acquireTime")?.0,
        renewed: renew_time.context("no renewTime")?.0,
    })
}

/// Waits until the Lease has the duration in `PATIENT_ELECTION`. Before, it may be that of a controller that was
/// stopped and has not released it.
fn wait_for_patient_holder(fixture: &Fixture) -> Result<LeaseState> {
    fixture.cluster.ready("apiserver", || {
        let now = read_lease(fixture)?;
        ensure!(now.seconds == LEASE_SECONDS, "the Lease holds for {} seconds", now.seconds);
        Ok(now)
    })
}

/// Waits until another holder has the Lease.
fn wait_for_other_holder(fixture: &Fixture, from: &str) -> Result<LeaseState> {
    fixture.cluster.ready("apiserver", || {
        let now = read_lease(fixture)?;
        ensure!(now.holder != from, "the holder is still {from:?}");
        Ok(now)
    })
}

/// Waits until the holder has renewed the Lease for twice its duration, despite contenders.
fn wait_for_renewals(fixture: &Fixture, since: &LeaseState) -> Result<LeaseState> {
    let start = read_lease(fixture)?.renewed;
    let now = fixture.cluster.ready("apiserver", || {
        let now = read_lease(fixture)?;
        let long = now.renewed.duration_since(start).as_secs_f64() > 2.0 * f64::from(LEASE_SECONDS);
        ensure!(long || now.holder != since.holder, "not renewed for long");
        Ok(now)
    })?;
    let is_same = (&now.holder, now.transitions) == (&since.holder, since.transitions);
    ensure!(is_same, "the Lease was taken from one who lives: {since:?}, then {now:?}");
    Ok(now)
}

/// Waits until another holder has the Lease of a killed one: after it has expired, and in one transition.
fn wait_for_expiry(fixture: &Fixture, last: &LeaseState) -> Result<LeaseState> {
    let next = wait_for_other_holder(fixture, &last.holder)?;
    ensure!(next.transitions == last.transitions + 1, "{last:?}, then {next:?}");
    let seconds = next.acquired.duration_since(last.renewed).as_secs_f64();
    // The programs wait by a monotonic clock; these times are of the wall clock, which the host of the machine may
    // adjust
    ensure!(seconds >= f64::from(LEASE_SECONDS) - 0.5, "taken after {seconds} s: {last:?}, then {next:?}");
    Ok(next)
}

/// Returns for each replica whether its metrics show that it leads.
fn read_leading(fixture: &Fixture) -> Result<[bool; 2]> {
    let [first, second] = METRICS.map(|address| topolvm::is_leading(&fixture.cluster, address));
    Ok([first?, second?])
}

/// Checks that the leader reconciles: it deletes the volume of a deleted Node.
fn check_reconciles(fixture: &Fixture, node: &str) -> Result<()> {
    fixture.create_node(node)?;
    fixture.create_volume(&format!("pvc-{node}"), node)?;
    fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
    ensure!(!fixture.exists(LV, &format!("pvc-{node}"))?, "the Node went before its volume");
    Ok(())
}
