//! Leader election: of all replicas, one at a time runs the controllers. The Lease and its rules are those of client-go, so that a
//! controller of TopoLVM and this one respect each other while a cluster is switched over.
//!
//! Whether a Lease has run out is told from when this process saw it change last, never by comparing its times with the own clock: clocks
//! of machines differ. Every write names the version that it is made from, so that of two that write at once one is refused.

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

/// How long giving the Lease back may take. Nothing is lost if it fails: the next leader then waits until the Lease has run out.
const RELEASE: Duration = Duration::from_secs(2);

/// How long things may take; client-go's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Others take the Lease when it was not renewed for so long. Whole seconds.
    pub(crate) lease_duration: Duration,
    /// The leader gives up when it could not renew for so long.
    pub(crate) renew_deadline: Duration,
    /// Between two attempts to renew.
    pub(crate) retry_period: Duration,
}

/// Which Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseName {
    /// Its namespace; that of this pod where it is `None`.
    pub(crate) namespace: Option<String>,
    /// Its name.
    pub(crate) name: String,
}

/// Takes part in the election.
#[derive(Clone)]
pub(crate) struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    timing: Timing,
    now: fn() -> Timestamp,
    is_leader: Gauge,
}

/// Why a Lease was not written or read.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The Lease is somebody else's, or gone.
    #[error("the Lease has another holder by now")]
    Taken,
    #[error(
        "cannot {action} Lease {name}; check the network, and that the Role allows get, create, update and watch of leases"
    )]
    Api { action: &'static str, name: String, source: Box<kube::Error> },
    #[error("Lease {name} was not answered for in time")]
    Late { name: String },
}

impl Election {
    /// An election about this Lease. `identity` is what tells this process from all others, also from an earlier one of the same pod.
    pub(crate) fn new(
        client: &Client,
        lease: LeaseName,
        identity: String,
        timing: Timing,
        now: fn() -> Timestamp,
        registry: &mut Registry,
    ) -> Self {
        let namespace = lease.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
        let family = Family::<[(&str, String); 1], Gauge>::default();
        let is_leader = family.get_or_create(&[("name", lease.name.clone())]).clone();
        // TopoLVM's name, so that dashboards go on working
        registry.register("leader_election_master_status", "1 while this replica runs the controllers, else 0", family);
        Self { api: Api::namespaced(client.clone(), namespace), name: lease.name, identity, timing, now, is_leader }
    }

    /// Whenever this process is elected, runs `work` until it loses the Lease or `shutdown` is cancelled. `work` must end soon after its
    /// token is cancelled; when it ends by itself with an error, so does this.
    pub(crate) async fn lead<F>(
        self,
        shutdown: CancellationToken,
        mut work: impl FnMut(CancellationToken) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        while let Some((mut lease, since)) = shutdown.run_until_cancelled(self.acquire()).await {
            tracing::info!(lease = self.name, identity = self.identity, "leading; the controllers start");
            self.is_leader.set(1);
            let term = shutdown.child_token();
            let renewing = async {
                term.run_until_cancelled(self.keep(&mut lease, since)).await;
                term.cancel();
            };
            let working = async {
                let result = work(term.clone()).await;
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

    /// Gives the Lease back, so that the next leader need not wait. The controllers have stopped by now.
    async fn release(&self, lease: Lease) {
        let free = lease::released(lease, (self.now)());
        match self.in_time(RELEASE, "release", self.api.replace(&self.name, &PostParams::default(), &free)).await {
            Ok(_) => tracing::info!(lease = self.name, "released the Lease"),
            Err(error) => {
                tracing::info!(error = error_chain(&error), "the next leader waits until the Lease has run out");
            }
        }
    }

    /// A call of the API server with a limit.
    async fn in_time<T>(
        &self,
        limit: Duration,
        action: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let name = self.name.clone();
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer.map_err(|source| Error::Api { action, name, source: Box::new(source) }),
            Err(_elapsed) => Err(Error::Late { name }),
        }
    }
}

impl Error {
    /// Somebody else wrote first.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 409))
    }
}

#[cfg(test)]
mod tests;
