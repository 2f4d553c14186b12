//! Reads and writes the Lease, each request with a timeout.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use topolvm_runtime::error_chain;

use super::{ElectionTiming, lease};

/// The time that releasing the Lease may take. Nothing is lost if it fails: the next leader then waits until it has
/// expired.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
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

/// The Lease of the election, as this process uses it.
#[derive(Clone)]
pub(super) struct LeaseClient {
    pub(super) api: Api<Lease>,
    pub(super) name: String,
    pub(super) identity: String,
    pub(super) timing: ElectionTiming,
    pub(super) now: fn() -> Timestamp,
}

impl LeaseClient {
    /// Reads the Lease; `None` if there is none.
    pub(super) async fn read(&self) -> Result<Option<Lease>, LeaseError> {
        self.with_timeout(self.request_timeout(), "read", self.api.get_opt(&self.name)).await
    }

    /// Creates the Lease with this process as its holder.
    pub(super) async fn create(&self) -> Result<Lease, LeaseError> {
        let new = Lease { metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }, spec: None };
        let new = lease::acquired(new, &self.identity, &self.timing, (self.now)());
        let params = PostParams::default();
        self.with_timeout(self.request_timeout(), "create", self.api.create(&params, &new)).await
    }

    /// Writes the Lease on condition that it is the version that was read.
    pub(super) async fn replace(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        let written = self
            .with_timeout(self.request_timeout(), "write", self.api.replace(&self.name, &PostParams::default(), lease))
            .await;
        match written {
            Err(LeaseError::Api { source, .. }) if is_api_error(&source, 404) => Err(LeaseError::Lost),
            written => written,
        }
    }

    /// Returns the timeout of one request: one that hangs must leave time for another.
    fn request_timeout(&self) -> Duration {
        self.timing.renew_deadline / 2
    }

    /// Releases the Lease, so that the next leader need not wait. The controllers have stopped by now.
    pub(super) async fn release(&self, lease: Lease) {
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
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api { source, .. } if is_api_error(source, 409))
    }
}

fn is_api_error(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
