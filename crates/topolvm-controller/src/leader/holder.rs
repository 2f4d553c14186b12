//! Renews the Lease while this process is the leader.

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;
use topolvm_runtime::error_chain;

use super::lease_client::LeaseError;
use super::{Election, lease};

impl Election {
    /// Renews the Lease, which was acquired at `since`, until it is lost. `lease` is always what the API server
    /// answered last.
    pub(super) async fn renew_until_lost(&self, lease: &mut Lease, since: Instant) {
        let mut deadline = since + self.lease.timing.renew_deadline;
        loop {
            // The deadline is before the Lease expires, so that the controllers have stopped when the next leader
            // begins
            tokio::time::sleep_until(deadline.min(Instant::now() + self.lease.timing.retry_period)).await;
            let started = Instant::now();
            if started >= deadline {
                tracing::warn!(lease = self.lease.name, "the Lease could not be renewed in time");
                return;
            }
            match tokio::time::timeout_at(deadline, self.renew(lease)).await {
                Ok(Ok(())) => deadline = started + self.lease.timing.renew_deadline,
                Ok(Err(LeaseError::Lost)) => {
                    tracing::warn!(lease = self.lease.name, "another replica holds the Lease");
                    return;
                }
                Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "cannot renew the Lease; trying again"),
                Err(_elapsed) => {}
            }
        }
    }

    /// Writes the Lease with a new renew time.
    async fn renew(&self, lease: &mut Lease) -> Result<(), LeaseError> {
        match self.lease.replace(&lease::renewed(lease.clone(), (self.lease.now)())).await {
            // Either another process acquired the Lease, or its metadata were changed, or an earlier answer was lost
            Err(error) if error.is_conflict() => {
                let found = self.lease.read().await?;
                let ours =
                    found.filter(|found| lease::is_held_by(found, &self.lease.identity)).ok_or(LeaseError::Lost)?;
                *lease = self.lease.replace(&lease::renewed(ours, (self.lease.now)())).await?;
            }
            written => *lease = written?,
        }
        Ok(())
    }
}
