//! Leader election: of all replicas, one at a time runs the controllers. The Lease and its rules are those of
//! client-go, so that a controller of TopoLVM and this one respect each other while a cluster is switched over.
//!
//! A Lease has expired when this process has not seen it change for its duration; its times are never compared with the
//! own clock: clocks of machines differ. Every write names the version that it is made from, so that of two that write
//! at once one is refused.
//!
//! `candidate` acquires the Lease, `holder` renews it, `lease_client` reads and writes it, `lease` has the pure parts.

mod args;
mod candidate;
mod holder;
mod lease;
mod lease_client;

use std::future::Future;

use jiff::Timestamp;
use kube::{Api, Client};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_runtime::CancellationToken;

pub(crate) use args::ElectionTiming;

use self::lease_client::LeaseClient;

/// Namespace and name of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    /// Its namespace; that of this pod where it is `None`.
    pub(crate) namespace: Option<String>,
    /// Its name.
    pub(crate) name: String,
}

/// The metric of leader elections: which this process has won.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderStatus(Family<[(&'static str, String); 1], Gauge>);

impl LeaderStatus {
    /// Makes the metric and adds it to the registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let status = Self::default();
        // TopoLVM's name, so that dashboards go on working
        registry.register(
            "leader_election_master_status",
            "1 while this replica runs the controllers, otherwise 0",
            status.0.clone(),
        );
        status
    }
}

/// A candidate of the leader election.
#[derive(Clone)]
pub(crate) struct Election {
    lease: LeaseClient,
    is_leader: Gauge,
}

impl Election {
    /// Makes a candidate for this Lease. `identity` differs from that of every other process, also of an earlier one of
    /// the same pod.
    pub(crate) fn new(
        client: &Client,
        lease: LeaseName,
        identity: String,
        timing: ElectionTiming,
        now: fn() -> Timestamp,
        status: &LeaderStatus,
    ) -> Self {
        let namespace = lease.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
        let is_leader = status.0.get_or_create(&[("name", lease.name.clone())]).clone();
        let api = Api::namespaced(client.clone(), namespace);
        Self { lease: LeaseClient { api, name: lease.name, identity, timing, now }, is_leader }
    }

    /// Runs `controllers` whenever this process is the leader, until it loses the Lease or `shutdown` is cancelled.
    /// They must end soon after their token is cancelled; if they end on their own with an error, so does this.
    pub(crate) async fn run<F>(
        self,
        shutdown: CancellationToken,
        mut controllers: impl FnMut(CancellationToken) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        while let Some((mut lease, since)) = shutdown.run_until_cancelled(self.acquire()).await {
            tracing::info!(lease = self.lease.name, identity = self.lease.identity, "leading; the controllers start");
            self.is_leader.set(1);
            let term = shutdown.child_token();
            let renewing = async {
                term.run_until_cancelled(self.renew_until_lost(&mut lease, since)).await;
                term.cancel();
            };
            let working = async {
                let result = controllers(term.clone()).await;
                term.cancel();
                result
            };
            let ((), result) = tokio::join!(renewing, working);
            self.is_leader.set(0);
            if shutdown.is_cancelled() || result.is_err() {
                self.lease.release(lease).await;
                return result;
            }
            tracing::warn!(
                lease = self.lease.name,
                "no longer leading; the controllers have stopped until the next election"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
