//! Releases the sources of copies that exist, or that nothing waits for any more.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use topolvm_api::SnapshotContent;
use topolvm_kube::{ReconcileError, has_finalizer, list_in_pages, none_if_not_found};
use topolvm_runtime::{Backoff, error_chain};

use crate::Provisioner;
use crate::attempt::Attempt;
use crate::content_source::DataSource;
use crate::source_protection::{RESTORING_FINALIZER, release_claim, release_snapshot};
use crate::volume_snapshot::VolumeSnapshot;

/// Pauses after a failure.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));
/// Interval of the search for snapshots that are protected for no claim.
const SEARCH_INTERVAL: Duration = Duration::from_mins(5);

impl Provisioner {
    /// Releases the snapshot of a volume that is provisioned. A failure delays nothing: `release_snapshots` repeats it.
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

    /// Searches periodically for snapshots of this driver that are protected although no claim waits for them: the
    /// claim was deleted, or an earlier process ended.
    pub(crate) async fn release_snapshots(&self) {
        loop {
            if let Err(error) = self.search_snapshots().await {
                tracing::warn!(error = error_chain(&error), "cannot search for protected VolumeSnapshots");
            }
            tokio::time::sleep(SEARCH_INTERVAL).await;
        }
    }

    async fn search_snapshots(&self) -> Result<(), ReconcileError> {
        let api: Api<VolumeSnapshot> = Api::all(self.context.client.clone());
        let mut snapshots = pin!(list_in_pages(&api, ListParams::default()));
        // No list where snapshots are not installed
        while let Some(next) =
            none_if_not_found(snapshots.try_next().await).map_err(ReconcileError::api("list", "VolumeSnapshots"))?
        {
            let Some(snapshot) = next else { break };
            if has_finalizer(&snapshot.metadata, RESTORING_FINALIZER) && self.is_left(&snapshot).await? {
                release_snapshot(&self.context.client, &snapshot).await?;
            }
        }
        Ok(())
    }

    /// Returns whether a protected snapshot is of this driver, and no claim waits for it. Provisioners of other drivers
    /// have the same finalizer.
    async fn is_left(&self, snapshot: &VolumeSnapshot) -> Result<bool, ReconcileError> {
        let source = Some(DataSource::Snapshot(snapshot.name_any()));
        let is_wanted = self.claims.any(|claim| {
            claim.namespace() == snapshot.namespace() && DataSource::of_claim(claim).ok().flatten() == source
        });
        let content = snapshot.status.bound_volume_snapshot_content_name.as_deref();
        let Some(content) = content.filter(|_| !is_wanted) else { return Ok(false) };
        let found = none_if_not_found(Api::<SnapshotContent>::all(self.context.client.clone()).get(content).await);
        let found = found.map_err(ReconcileError::api("read VolumeSnapshotContent", content))?;
        Ok(found.is_some_and(|content| content.spec.driver == self.context.driver))
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
