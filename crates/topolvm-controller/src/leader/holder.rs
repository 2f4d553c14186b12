//! Holding on to the Lease.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use tokio::time::Instant;
use topolvm_runtime::error_chain;

use super::{Election, Error, lease};

impl Election {
    /// Renews the Lease, which was taken at `since`, until it is lost. `lease` is always what the API server answered last.
    pub(super) async fn keep(&self, lease: &mut Lease, since: Instant) {
        let mut deadline = since + self.timing.renew_deadline;
        loop {
            // The deadline is before the Lease runs out, so that the controllers have stopped when the next leader begins
            tokio::time::sleep_until(deadline.min(Instant::now() + self.timing.retry_period)).await;
            let started = Instant::now();
            if started >= deadline {
                tracing::warn!(lease = self.name, "the Lease could not be renewed in time");
                return;
            }
            match tokio::time::timeout_at(deadline, self.renew(lease)).await {
                Ok(Ok(())) => deadline = started + self.timing.renew_deadline,
                Ok(Err(Error::Taken)) => {
                    tracing::warn!(lease = self.name, "somebody else holds the Lease");
                    return;
                }
                Ok(Err(error)) => tracing::warn!(error = error_chain(&error), "cannot renew the Lease; trying again"),
                Err(_elapsed) => {}
            }
        }
    }

    async fn renew(&self, lease: &mut Lease) -> Result<(), Error> {
        match self.replace(&lease::renewed(lease.clone(), (self.now)())).await {
            // Either somebody took the Lease, or touched its metadata, or an earlier answer was lost
            Err(error) if error.is_conflict() => {
                let found = self.in_time(self.limit(), "read", self.api.get_opt(&self.name)).await?;
                let ours = found.filter(|found| lease::is_held_by(found, &self.identity)).ok_or(Error::Taken)?;
                *lease = self.replace(&lease::renewed(ours, (self.now)())).await?;
            }
            written => *lease = written?,
        }
        Ok(())
    }

    pub(super) async fn replace(&self, lease: &Lease) -> Result<Lease, Error> {
        let written =
            self.in_time(self.limit(), "write", self.api.replace(&self.name, &PostParams::default(), lease)).await;
        match written {
            Err(Error::Api { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 404) => {
                Err(Error::Taken)
            }
            written => written,
        }
    }

    /// One call that hangs must leave time for another.
    pub(super) fn limit(&self) -> std::time::Duration {
        self.timing.renew_deadline / 2
    }
}
