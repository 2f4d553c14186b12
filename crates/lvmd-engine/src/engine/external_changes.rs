//! Detects what others change in a volume group: an administrator's vgextend, another lvmd, a thin pool that fills up,
//! a disk that goes.
//!
//! Every second the metadata headers are read, a block of each physical volume, and device-mapper is asked about its
//! devices; LVM is only asked when something has changed. The alternatives know less: LVM's backup directory is in
//! another container as likely as not and can be switched off, and uevents are about devices, not about metadata.

use std::time::Duration;

use lvm::Host;
use tokio::time::Instant;
use topolvm_runtime::Backoff;

use super::device_snapshot::Freshness;
use super::group_tags::tag_group;
use super::pool_steps::PoolMaintainer;
use super::proof::prove_refusals;
use super::state::{GroupHandle, LockedGroup};
use super::suspended::resume_suspended;
use super::unfinished_sweep::UnfinishedSweep;

/// Between two snapshots of the devices.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// LVM is asked this often although nothing seems to have changed ...
const REFRESH_INTERVAL: Duration = Duration::from_mins(10);
/// ... and this often while the devices do not answer.
const BLIND_REFRESH_INTERVAL: Duration = Duration::from_mins(1);
/// Back-off after LVM failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));

/// The detection of external changes of one volume group, with the work that follows from them.
pub(super) struct ChangeDetection<R> {
    group: GroupHandle<R>,
    unfinished: UnfinishedSweep,
    next_sweep: Instant,
    next_tagging: Instant,
}

impl<R: Host> ChangeDetection<R> {
    pub(super) fn new(group: GroupHandle<R>) -> Self {
        let now = Instant::now();
        Self { group, unfinished: UnfinishedSweep::default(), next_sweep: now, next_tagging: now }
    }

    /// Keeps the cache of the group up to date, removes unfinished volumes from the group, maintains its thin pools and
    /// finds out whether LVM still refuses volumes, until the shutdown begins.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let shutdown = self.group.shared().shutdown.clone();
        self.next_tagging = Instant::now();
        self.clean_up().await;
        self.next_sweep = Instant::now() + REFRESH_INTERVAL;
        let (mut delay, mut backoff) = (POLL_INTERVAL, BACKOFF);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(delay) => {}
                // A change failed and left an unknown state behind.
                () = self.group.refresh_needed.notified(), if delay == POLL_INTERVAL => {}
            }
            if !self.group.shared().has_volumes(&self.group) {
                continue;
            }
            // A task that has locked the group changes it, and stores what comes of it.
            let Some(mut group) = self.group.try_lock() else { continue };
            let is_sweep_due = Instant::now() >= self.next_sweep;
            if is_sweep_due || needs_refresh(&group).await {
                // An LVM that hangs must not hold up the shutdown.
                let Some(refreshed) = shutdown.run_until_cancelled(group.refresh()).await else { return Ok(()) };
                if refreshed.is_err() {
                    delay = backoff.fail();
                    continue;
                }
            }
            self.maintain(&mut group, is_sweep_due).await;
            backoff.reset();
            delay = POLL_INTERVAL;
        }
    }

    /// Resumes and removes what an earlier process left suspended or unfinished.
    async fn clean_up(&mut self) {
        let mut group = self.group.lock().await;
        resume_suspended(&mut group).await;
        self.unfinished.sweep(&mut group).await;
    }

    /// Does what is due in a group whose cache is up to date.
    async fn maintain(&mut self, group: &mut LockedGroup<R>, is_sweep_due: bool) {
        if is_sweep_due {
            self.unfinished.sweep(group).await;
            self.next_sweep = Instant::now() + REFRESH_INTERVAL;
        }
        PoolMaintainer::new(group).maintain().await;
        prove_refusals(group).await;
        if Instant::now() >= self.next_tagging && tag_group(group).await {
            self.next_tagging = Instant::now() + REFRESH_INTERVAL;
        }
    }
}

/// Returns whether LVM must be asked about a group. Stores the fill of its thin pools on the way.
async fn needs_refresh<R: Host>(group: &LockedGroup<R>) -> bool {
    let snapshot = group.take_device_snapshot(&group.shared().devices()).await;
    // Device-mapper answers also while LVM waits for a disk.
    if snapshot.as_ref().is_ok_and(|snapshot| group.store_pool_fills(snapshot.pool_fills())) {
        group.shared().publish();
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
