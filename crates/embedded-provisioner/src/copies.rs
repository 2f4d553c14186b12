//! Releases the sources of copies that exist, or that nothing waits for any more.

use kube::{Api, ResourceExt as _};
use std::time::Duration;
use topolvm_kube::{ReconcileError, none_if_not_found};
use topolvm_runtime::{Backoff, error_chain};

use crate::Provisioner;
use crate::attempt::Attempt;
use crate::content_source::DataSource;
use crate::source_protection::{release_claim, release_snapshot};
use crate::volume_snapshot::VolumeSnapshot;

/// Pauses after a failure.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

impl Provisioner {
    /// Releases the snapshot of a volume that is provisioned. A failure delays nothing: the snapshot is released with
    /// the next volume that is restored from it, or by `release_snapshots`.
    pub(crate) async fn release_source(&self, attempt: &Attempt) {
        let Ok(Some(DataSource::Snapshot(name))) = DataSource::of_claim(&attempt.claim) else { return };
        let namespace = attempt.claim.namespace().unwrap_or_default();
        if let Err(error) = self.try_release_snapshot(&namespace, &name).await {
            tracing::warn!(snapshot = name, namespace, error = error_chain(&error), "cannot release a VolumeSnapshot");
        }
    }

    async fn try_release_snapshot(&self, namespace: &str, name: &str) -> Result<(), ReconcileError> {
        let api: Api<VolumeSnapshot> = Api::namespaced(self.context.client.clone(), namespace);
        let found = none_if_not_found(api.get(name).await);
        match found.map_err(ReconcileError::api("read VolumeSnapshot", name))? {
            Some(snapshot) => release_snapshot(&self.context.client, &snapshot).await,
            None => Ok(()),
        }
    }

    /// Releases claims that are being deleted when no claim waits any more to clone them.
    pub(crate) async fn release_sources(&self) {
        let (mut changes, mut backoff) = (self.claims.releases(), RETRY);
        loop {
            changes.mark_unchanged();
            let mut has_failed = false;
            for source in self.claims.releasable_sources() {
                if let Err(error) = release_claim(&self.context.client, &source).await {
                    has_failed = true;
                    let claim = source.name_any();
                    tracing::warn!(claim, error = error_chain(&error), "cannot release the source of a clone");
                }
            }
            if has_failed {
                tokio::time::sleep(backoff.fail()).await;
                continue;
            }
            backoff.reset();
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
