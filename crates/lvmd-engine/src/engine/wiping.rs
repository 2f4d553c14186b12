//! Wipes removed volumes in the background, one at a time in each volume group, before their extents are given to
//! others.

mod device;
mod error;
mod pending;
mod status;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{Host, Wipeable};
use tokio::time::{Instant, sleep_until, timeout};
use topolvm_runtime::{Backoff, error_chain};

use super::retry_queue::{Next, RetryQueue};
use super::state::{GroupHandle, LockedGroup};
use device::{open_for_wiping, remove_wiped};
use error::WipeError;
use pending::{PendingWipe, TAKE_OVER, class_name_of, pending_wipes};

pub use status::WipeStatus;
pub(super) use status::wipe_status;

/// Back-off after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(10));
/// Bytes that are wiped in one step. A slow disk needs less than a second for it, so that the process can end, and a
/// fast one is not slowed down.
const STEP: u64 = 32 << 20;
/// Time that the last step has at the shutdown. Only a disk that hangs needs more.
const LAST_STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// The wiping of the removed volumes of one volume group.
pub(super) struct Wiping<R> {
    group: GroupHandle<R>,
    /// No state of the group decides whether a volume can be wiped.
    queue: RetryQueue<()>,
}

impl<R: Host> Wiping<R> {
    pub(super) fn new(group: GroupHandle<R>) -> Self {
        Self { group, queue: RetryQueue::new(BACKOFF) }
    }

    /// Wipes and removes the volumes of the group that carry the tag `topolvm.io/wiping=...`, until the shutdown
    /// begins.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let shared = Arc::clone(self.group.shared());
        loop {
            let pending = pending_wipes(&shared.instance, &self.group);
            if self.group.wipe_progress.retain(|uuid| pending.iter().any(|volume| volume.uuid == *uuid)) {
                shared.publish();
            }
            match self.queue.next(&pending, (), Instant::now()) {
                Next::Due(volume) => match self.wipe(&volume).await {
                    Ok(()) => {}
                    Err(WipeError::Stopping) => return Ok(()),
                    // The lvmd that the volume belongs to is wiping it.
                    Err(WipeError::InUse) if !volume.is_ours => {
                        self.queue.postpone(&volume.uuid, Instant::now() + TAKE_OVER);
                    }
                    Err(error) => {
                        self.queue.retry_later(&volume.uuid, (), Instant::now());
                        self.record_failure(&volume, &error);
                    }
                },
                Next::Wait(until) => tokio::select! {
                    () = shared.shutdown.cancelled() => return Ok(()),
                    () = self.group.refreshed.notified() => {}
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
                },
            }
        }
    }

    /// Wipes a volume from its beginning to its end and removes it. Succeeds when the volume has gone meanwhile.
    async fn wipe(&self, pending: &PendingWipe) -> Result<(), WipeError> {
        let uuid = pending.uuid.clone();
        let opening = async move |mut group: LockedGroup<R>| Ok(open_for_wiping(&mut group, &uuid).await);
        let Some(mut device) = self.group.with_lock(opening).await?? else { return Ok(()) };
        let (started, size, how) = (Instant::now(), device.size(), pending.how);
        if size < pending.size {
            return Err(WipeError::Size { device: size, volume: pending.size });
        }
        tracing::info!(vg = %self.group.name, name = pending.name, %how, size, "wiping a volume");
        let mut at = 0;
        while at < size {
            let end = size.min(at.saturating_add(STEP));
            let step = move |device: &mut dyn Wipeable| device.wipe(how, at..end);
            device = self.run_step(device, step).await?.map_err(|source| WipeError::Wipe { at, source })?;
            self.group.wipe_progress.set_wiped(&pending.uuid, end);
            at = end;
        }
        let device = self.run_step(device, |device| device.flush()).await?.map_err(WipeError::Flush)?;
        drop(device);
        let uuid = pending.uuid.clone();
        let removing = async move |mut group: LockedGroup<R>| remove_wiped(&mut group, &uuid).await;
        self.group.with_lock(removing).await?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(vg = %self.group.name, name = pending.name, seconds, "wiped a volume and freed its extents");
        Ok(())
    }

    /// Runs one step on a device in a separate thread, and returns the device for the next one.
    async fn run_step(
        &self,
        mut device: Box<dyn Wipeable>,
        step: impl FnOnce(&mut dyn Wipeable) -> io::Result<()> + Send + 'static,
    ) -> Result<io::Result<Box<dyn Wipeable>>, WipeError> {
        let shutdown = &self.group.shared().shutdown;
        let mut running = tokio::task::spawn_blocking(move || step(&mut *device).map(|()| device));
        let Some(done) = shutdown.run_until_cancelled(&mut running).await else {
            drop(timeout(LAST_STEP_TIMEOUT, running).await);
            return Err(WipeError::Stopping);
        };
        Ok(done?)
    }

    fn record_failure(&self, volume: &PendingWipe, error: &WipeError) {
        let shared = self.group.shared();
        let class = class_name_of(&shared.classes(), &self.group, &volume.name);
        let error = error_chain(error);
        tracing::error!(
            vg = %self.group.name,
            name = volume.name,
            class,
            error,
            "cannot wipe a removed volume; its extents stay used, and it is tried again"
        );
        self.group.wipe_progress.add_failure(&volume.uuid, &volume.name, class, &error);
        shared.publish();
    }
}
