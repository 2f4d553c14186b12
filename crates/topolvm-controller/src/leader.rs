//! Leader election: of all replicas, one at a time runs the controllers. The Lease and its rules are those of
//! client-go, so that a controller of TopoLVM and this one respect each other while a cluster is switched over.
//!
//! A Lease has expired when this process has not seen it change for its duration; its times are never compared with the
//! own clock: clocks of machines differ. Every write names the version that it is made from, so that of two that write
//! at once one is refused.
//!
//! `candidate` acquires the Lease, `holder` renews it, `lease` has the pure parts.

mod args;
mod candidate;
mod holder;
mod lease;

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_runtime::{CancellationToken, error_chain};

pub(crate) use args::ElectionTiming;

/// The time that releasing the Lease may take. Nothing is lost if it fails: the next leader then waits until it has
/// expired.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Namespace and name of the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    /// Its namespace; that of this pod where it is `None`.
    pub(crate) namespace: Option<String>,
    /// Its name.
    pub(crate) name: String,
}

/// A candidate of the leader election.
#[derive(Clone)]
pub(crate) struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: ElectionTiming,
    now: fn() -> Timestamp,
    is_leader: Gauge,
}

/// A Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("another replica holds the Lease")]
    Lost,
    #[error("cannot {action} Lease {name}{}", advice(source))]
    Api { action: &'static str, name: String, source: Box<kube::Error> },
    #[error("the API server did not answer in time about Lease {name}")]
    Timeout { name: String },
}

/// Returns the fix for an error. For rejected credentials the message of the client itself names it.
fn advice(error: &kube::Error) -> &'static str {
    if is_api_error(error, 403) {
        "; allow get, create, update and watch of leases in the Role"
    } else if matches!(error, kube::Error::Api(_)) {
        ""
    } else {
        "; check the network"
    }
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
        registry: &mut Registry,
    ) -> Self {
        let namespace = lease.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
        let family = Family::<[(&str, String); 1], Gauge>::default();
        let is_leader = family.get_or_create(&[("name", lease.name.clone())]).clone();
        // TopoLVM's name, so that dashboards go on working
        registry.register(
            "leader_election_master_status",
            "1 while this replica runs the controllers, otherwise 0",
            family,
        );
        Self { api: Api::namespaced(client.clone(), namespace), name: lease.name, identity, timing, now, is_leader }
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
            tracing::info!(lease = self.name, identity = self.identity, "leading; the controllers start");
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
                self.release(lease).await;
                return result;
            }
            tracing::warn!(
                lease = self.name,
                "no longer leading; the controllers have stopped until the next election"
            );
        }
        Ok(())
    }

    /// Releases the Lease, so that the next leader need not wait. The controllers have stopped by now.
    async fn release(&self, lease: Lease) {
        let free = lease::released(lease, (self.now)());
        let params = PostParams::default();
        let call = self.api.replace(&self.name, &params, &free);
        match self.with_timeout(RELEASE_TIMEOUT, "release", call).await {
            Ok(_) => tracing::info!(lease = self.name, "released the Lease"),
            Err(error) => {
                tracing::info!(
                    error = error_chain(&error),
                    "cannot release the Lease; the next leader waits until it expires"
                );
            }
        }
    }

    /// Runs a call of the API server with a timeout.
    async fn with_timeout<T>(
        &self,
        timeout: Duration,
        action: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, LeaseError> {
        let name = self.name.clone();
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer.map_err(|source| LeaseError::Api { action, name, source: Box::new(source) }),
            Err(_elapsed) => Err(LeaseError::Timeout { name }),
        }
    }
}

impl LeaseError {
    /// Returns whether another writer was first.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if is_api_error(source, 409))
    }
}

fn is_api_error(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests;
