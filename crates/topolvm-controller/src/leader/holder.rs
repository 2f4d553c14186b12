//! Renews the Lease while this process is the leader.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use tokio::time::Instant;
use topolvm_runtime::error_chain;

use super::{Election, LeaseError, is_api_error, lease};

impl Election {
    /// Renews the Lease, which was acquired at `since`, until it is lost. `lease` is always what the API server
    /// answered last.
    pub(super) async fn renew_until_lost(&self, lease: &mut Lease, since: Instant) {
        let mut deadline = since + self.timing.renew_deadline;
        loop {
            // The deadline is before the Lease expires, so that the controllers have stopped when the next leader
            // begins
            tokio::time::sleep_until(deadline.min(Instant::now() + self.timing.retry_period)).await;
            let started = Instant::now();
            if started >= deadline {
                tracing::warn!(lease = self.name, "the Lease could not be renewed in time");
                return;
            }
            match tokio::time::timeout_at(deadline, self.renew(lease)).await {
                Ok(Ok(())) => deadline = started + self.timing.renew_deadline,
                Ok(Err(LeaseError::Lost)) => {
                    tracing::warn!(lease = self.name, "another replica holds the Lease");
                    return;
                }
                Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "cannot renew the Lease; trying again"),
                Err(_elapsed) => {}
            }
        }
    }

    /// Writes the Lease with a new renew time.
    async fn renew(&self, lease: &mut Lease) -> Result<(), LeaseError> {
        match self.replace(&lease::renewed(lease.clone(), (self.now)())).await {
            // Either another process acquired the Lease, or its metadata were changed, or an earlier answer was lost
            Err(error) if error.is_conflict() => {
                let found = self.with_timeout(self.request_timeout(), "read", self.api.get_opt(&self.name)).await?;
                let ours = found.filter(|found| lease::is_held_by(found, &self.identity)).ok_or(LeaseError::Lost)?;
                *lease = self.replace(&lease::renewed(ours, (self.now)())).await?;
            }
            written => *lease = written?,
        }
        Ok(())
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
    pub(super) fn request_timeout(&self) -> std::time::Duration {
        self.timing.renew_deadline / 2
    }
}
