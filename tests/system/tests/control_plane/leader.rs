//! Two replicas, of which one leads.

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::topolvm::{self, CONTROLLER};

use crate::Body;
use crate::fixture::{ELECTION, Fixture, LV, spec};

pub(crate) const ALL: &[(&str, Body)] =
    &[("when_the_leader_stops_or_is_killed_the_other_replica_leads_and_goes_on", take_over)];

const SECOND: &str = "topolvm-controller-2";

fn take_over(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let first = holder(fixture)?;
    let mut command = cluster.command(spec(&[])?.programs.join(CONTROLLER));
    command.arg("--csi-socket").arg(cluster.directory().join("controller/second.sock")).args(ELECTION);
    command.args(["--metrics-bind-address=", "--health-probe-bind-address="]);
    command.arg("--leader-election-namespace=topolvm-system");
    command.env("KUBECONFIG", cluster.directory().join("topolvm-controller.kubeconfig"));
    cluster.spawn(SECOND, &command)?;
    // It serves CSI whether or not it leads
    cluster.ready(SECOND, || {
        Ok(std::os::unix::net::UnixStream::connect(cluster.directory().join("controller/second.sock"))?)
    })?;
    ensure!(holder(fixture)? == first, "the second replica has taken the Lease from a leader that lives");

    cluster.stop(CONTROLLER, Duration::from_secs(10))?;
    let second = changed(fixture, &first)?;
    works(fixture, "after-stop")?;
    topolvm::start_controller(cluster, &spec(&[])?)?;
    ensure!(holder(fixture)? == second, "a replica that has just started has taken the Lease from a leader that lives");

    cluster.stop(SECOND, Duration::ZERO)?;
    changed(fixture, &second)?;
    works(fixture, "after-kill")?;
    fixture.check_rights()
}

/// Who leads; waits for the first leader.
fn holder(fixture: &Fixture) -> Result<String> {
    changed(fixture, "")
}

fn changed(fixture: &Fixture, from: &str) -> Result<String> {
    fixture.cluster.ready("apiserver", || {
        let words = ["get", "lease", "topolvm", "-n", "topolvm-system", "-o", "jsonpath={.spec.holderIdentity}"];
        let now = fixture.kubectl(&words)?;
        ensure!(!now.is_empty() && now != from, "the holder is still {from:?}");
        Ok(now)
    })
}

/// Whoever leads does the work.
fn works(fixture: &Fixture, node: &str) -> Result<()> {
    fixture.node(node)?;
    fixture.volume(&format!("pvc-{node}"), node)?;
    fixture.kubectl(&["delete", "node", node, "--timeout=60s"])?;
    ensure!(!fixture.exists(LV, &format!("pvc-{node}"))?, "the Node went before its volume");
    Ok(())
}
