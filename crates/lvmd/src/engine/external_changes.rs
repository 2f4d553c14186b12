//! Detects what others change in a volume group: an administrator's vgextend, another lvmd, a thin pool that fills up,
//! a disk that goes.
//!
//! Every second the metadata headers are read, a block of each physical volume, and device-mapper is asked about its
//! devices; LVM is only asked when something has changed. The alternatives know less: LVM's backup directory is in
//! another container as likely as not and can be switched off, and uevents tell of devices, not of metadata.

use std::sync::Arc;
use std::time::Duration;

use lvm::Host;
use tokio::time::Instant;
use topolvm_runtime::{Backoff, CancellationToken};

use super::device_snapshot::Freshness;
use super::group::Group;
use super::state::Engine;
use super::unfinished::UnfinishedVolume;
use crate::tags;

/// Between two snapshots of the devices.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// LVM is asked this often although nothing seems to have changed ...
const REFRESH_INTERVAL: Duration = Duration::from_mins(10);
/// ... and this often while the devices cannot tell.
const BLIND_REFRESH_INTERVAL: Duration = Duration::from_mins(1);
/// Back-off after LVM failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));

/// Keeps the cache of a group up to date, removes unfinished volumes from the group, keeps its thin pools up and finds
/// out whether LVM still refuses volumes, until the shutdown begins.
pub(super) async fn watch_group<R: Host>(
    engine: Engine<R>,
    group: Arc<Group>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut next_tagging = Instant::now();
    let mut unfinished = engine.clean_up(&group).await;
    let mut next_sweep = Instant::now() + REFRESH_INTERVAL;
    let (mut delay, mut backoff) = (POLL_INTERVAL, BACKOFF);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(delay) => {}
            // A change failed and left an unknown state behind.
            () = group.refresh_needed.notified(), if delay == POLL_INTERVAL => {}
        }
        if !engine.has_volumes(&group) {
            continue;
        }
        // Whoever holds the lock changes the group and stores what comes of it.
        let Some(lock) = group.try_lock() else { continue };
        let is_sweep_due = Instant::now() >= next_sweep;
        if is_sweep_due || engine.needs_refresh(&group).await {
            // An LVM that hangs must not hold up the shutdown.
            let Some(refreshed) = shutdown.run_until_cancelled(engine.refresh(&group)).await else { return Ok(()) };
            if refreshed.is_err() {
                delay = backoff.fail();
                continue;
            }
        }
        if is_sweep_due {
            unfinished = engine.sweep_unfinished(&group, &unfinished).await;
            next_sweep = Instant::now() + REFRESH_INTERVAL;
        }
        engine.keep_up_pools(&group).await;
        engine.prove_refusals(&group).await;
        if Instant::now() >= next_tagging && engine.tag_group(&group, &lock).await {
            next_tagging = Instant::now() + REFRESH_INTERVAL;
        }
        backoff.reset();
        delay = POLL_INTERVAL;
    }
}

impl<R: Host> Engine<R> {
    /// Resumes and removes what an earlier process left suspended or unfinished. Returns the unfinished volumes that
    /// stay.
    async fn clean_up(&self, group: &Group) -> Vec<UnfinishedVolume> {
        let _lock = group.lock().await;
        self.resume_suspended(group).await;
        self.sweep_unfinished(group, &[]).await
    }

    /// Returns whether a class has its volumes in the group, or lvmd created some there. Those of a class that is no
    /// longer configured may still be used, or have to be wiped.
    pub(super) fn has_volumes(&self, group: &Group) -> bool {
        self.is_used(group) || group.cached().is_some_and(|known| known.volumes.iter().any(tags::is_managed))
    }

    /// Returns whether LVM must be asked about a group. Stores the fill of its thin pools on the way.
    async fn needs_refresh(&self, group: &Group) -> bool {
        let snapshot = group.take_device_snapshot(&self.devices()).await;
        // Device-mapper tells also while LVM waits for a disk.
        if snapshot.as_ref().is_ok_and(|snapshot| group.store_pool_fills(snapshot.pool_fills())) {
            self.publish();
        }
        if group.stale_reason().is_some() {
            return true;
        }
        let freshness = snapshot.map_or(Freshness::Unknown, |snapshot| group.compare_devices(snapshot));
        match freshness {
            Freshness::Outdated => true,
            Freshness::Unknown => group.age() >= BLIND_REFRESH_INTERVAL,
            Freshness::Current => false,
        }
    }
}
