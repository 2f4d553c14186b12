//! Wipes removed volumes in the background, one at a time in each volume group, before their extents are given to
//! others.

mod device;
mod error;
mod queue;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{Host, VgName, Wipeable};
use tokio::time::{Instant, sleep_until, timeout};
use topolvm_runtime::{CancellationToken, error_chain};

use super::group::Group;
use super::state::Engine;
use crate::tags;
use error::WipeError;
use queue::{Next, PendingWipe, Queue};

/// Bytes that are wiped in one step. A slow disk needs less than a second for it, so that the process can end, and a
/// fast one is not slowed down.
const STEP: u64 = 32 << 20;
/// Time that the last step has at the shutdown. Only a disk that hangs needs more.
const LAST_STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Volumes of one class, or of none, that are being wiped: for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WipeStatus {
    pub(crate) volume_group: VgName,
    /// Empty when no configured class has such volumes.
    pub(crate) device_class: String,
    pub(crate) volumes: u64,
    /// Bytes that are not wiped yet.
    pub(crate) bytes: u64,
    /// Number of failures since the start of the process.
    pub(crate) failures: u64,
}

/// Wipes and removes the volumes of a group that carry the tag `topolvm.io/wiping=...`, until the shutdown begins.
pub(super) async fn wipe_removed_volumes<R: Host>(
    engine: Engine<R>,
    group: Arc<Group>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut queue = Queue::default();
    loop {
        let pending = engine.pending_wipes(&group);
        if group.wipe_progress.retain(|uuid| pending.iter().any(|volume| volume.uuid == *uuid)) {
            engine.publish();
        }
        match queue.next(&pending, Instant::now()) {
            Next::Wipe(volume) => match engine.wipe(&group, &volume, &shutdown).await {
                Ok(()) => {}
                Err(WipeError::Stopping) => return Ok(()),
                // The lvmd that the volume belongs to is wiping it.
                Err(WipeError::InUse) if !volume.is_ours => queue.leave_to_owner(&volume.uuid, Instant::now()),
                Err(error) => {
                    queue.retry_later(&volume.uuid, Instant::now());
                    engine.record_wipe_failure(&group, &volume, &error);
                }
            },
            Next::Wait(until) => tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = group.refreshed.notified() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            },
        }
    }
}

impl<R: Host> Engine<R> {
    /// Returns what is being wiped, and failed in this process, by group and class. Classes that wipe are listed also
    /// when nothing is being wiped.
    pub(crate) fn wipe_status(&self) -> Vec<WipeStatus> {
        let mut all: Vec<WipeStatus> = Vec::new();
        let mut add = |vg: &VgName, class: String, volumes: u64, bytes: u64, failures: u64| {
            let is_same = |entry: &&mut WipeStatus| entry.volume_group == *vg && entry.device_class == class;
            match all.iter_mut().find(is_same) {
                Some(entry) => {
                    entry.volumes += volumes;
                    entry.bytes += bytes;
                    entry.failures += failures;
                }
                None => {
                    all.push(WipeStatus { volume_group: vg.clone(), device_class: class, volumes, bytes, failures });
                }
            }
        };
        for class in self.classes().iter().filter(|class| class.wipe.is_some() && class.thin_pool.is_none()) {
            add(&class.volume_group, class.name.clone(), 0, 0, 0);
        }
        for group in self.groups().values() {
            for volume in self.pending_wipes(group) {
                let left = volume.size.saturating_sub(group.wipe_progress.wiped(&volume.uuid));
                add(&group.name, self.class_name_of(group, &volume.name), 1, left, 0);
            }
            for (class, failures) in group.wipe_progress.failures() {
                add(&group.name, class, 0, 0, failures);
            }
        }
        all
    }

    fn pending_wipes(&self, group: &Group) -> Vec<PendingWipe> {
        let Some(known) = group.cached() else { return Vec::new() };
        let pending = known.volumes.iter().filter_map(|volume| {
            Some(PendingWipe {
                uuid: volume.uuid.to_string(),
                name: volume.name.to_string(),
                how: tags::wipe_method(volume)?,
                size: volume.size,
                is_ours: self.inner.instance.is_wiping(volume),
            })
        });
        pending.collect()
    }

    /// Returns the name of the configured class whose volumes lie where this volume lies; empty for none.
    fn class_name_of(&self, group: &Group, name: &str) -> String {
        let known = group.cached();
        let volume = known.as_ref().and_then(|known| known.volume(name));
        let class = volume.and_then(|volume| self.class_that_owns(&group.name, volume));
        class.map_or_else(String::new, |class| class.name.clone())
    }

    /// Wipes a volume from its beginning to its end and removes it. Succeeds when the volume has gone meanwhile.
    async fn wipe(
        &self,
        group: &Arc<Group>,
        pending: &PendingWipe,
        shutdown: &CancellationToken,
    ) -> Result<(), WipeError> {
        let uuid = pending.uuid.clone();
        let opening = async move |engine: Self, group: Arc<Group>| Ok(engine.open_for_wiping(&group, &uuid).await);
        let Some(mut device) = self.with_lock(Arc::clone(group), opening).await?? else { return Ok(()) };
        let (started, size, how) = (Instant::now(), device.size(), pending.how);
        if size < pending.size {
            return Err(WipeError::Size { device: size, volume: pending.size });
        }
        tracing::info!(vg = %group.name, name = pending.name, %how, size, "wiping a volume");
        let mut at = 0;
        while at < size {
            let end = size.min(at.saturating_add(STEP));
            let step = move |device: &mut dyn Wipeable| device.wipe(how, at..end);
            device = run_step(device, shutdown, step).await?.map_err(|source| WipeError::Wipe { at, source })?;
            group.wipe_progress.set_wiped(&pending.uuid, end);
            at = end;
        }
        let device = run_step(device, shutdown, |device| device.flush()).await?.map_err(WipeError::Flush)?;
        drop(device);
        let uuid = pending.uuid.clone();
        let removing = async move |engine: Self, group: Arc<Group>| engine.remove_wiped(&group, &uuid).await;
        self.with_lock(Arc::clone(group), removing).await?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(vg = %group.name, name = pending.name, seconds, "wiped a volume and gave its room back");
        Ok(())
    }

    fn record_wipe_failure(&self, group: &Group, volume: &PendingWipe, error: &WipeError) {
        let class = self.class_name_of(group, &volume.name);
        let error = error_chain(error);
        tracing::error!(
            vg = %group.name,
            name = volume.name,
            class,
            error,
            "cannot wipe a removed volume; its room is not given away, and it is tried again"
        );
        group.wipe_progress.add_failure(&volume.uuid, &volume.name, class, &error);
        self.publish();
    }
}

/// Runs one step on a device in a thread of its own, and returns the device for the next one.
async fn run_step(
    mut device: Box<dyn Wipeable>,
    shutdown: &CancellationToken,
    step: impl FnOnce(&mut dyn Wipeable) -> io::Result<()> + Send + 'static,
) -> Result<io::Result<Box<dyn Wipeable>>, WipeError> {
    let mut running = tokio::task::spawn_blocking(move || step(&mut *device).map(|()| device));
    let Some(done) = shutdown.run_until_cancelled(&mut running).await else {
        drop(timeout(LAST_STEP_TIMEOUT, running).await);
        return Err(WipeError::Stopping);
    };
    Ok(done?)
}
