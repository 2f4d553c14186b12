//! Empties physical volumes in the background: moves what lies on them to the others of their group, in pieces, one at
//! a time in each group. The request to do so is a tag in LVM's metadata, see [`EvacuationRequest`].

mod begun_moves;
mod obstacle;
mod piece;
mod plan;
mod request;
mod vacated;

use std::sync::Arc;
use std::time::Duration;

use lvm::Host;
use lvmd_config::tags::{EvacuationRequest, VacatedExtents};
use tokio::time::{Instant, sleep_until};
use topolvm_runtime::Backoff;

use super::disk_volumes::update_disk_volumes;
use super::group::Group;
use super::retry_queue::{Next, Queued, RetryQueue};
use super::state::{GroupHandle, LockedGroup};
use crate::error::Error;
use begun_moves::finish_begun_moves;
use obstacle::record_obstacle;
use piece::{move_piece, read_piece};
use plan::{Step, pause_after, plan_step};

pub(super) use request::{begin_evacuation, end_evacuation, find_disk};

/// Back-off after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));
/// Time until a volume of which a part could not be read is tried again: a disk that fails is not to be read for
/// nothing.
const FAILURE_PAUSE: Duration = Duration::from_mins(10);

/// The outcome of one step.
enum Progress {
    /// The next step is due after this time.
    Advanced(Duration),
    /// There is nothing to do before the group changes.
    Waits,
}

/// A physical volume that is being emptied: for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvacuationStatus {
    /// Its volume group.
    pub volume_group: String,
    /// Its device.
    pub disk: String,
    /// Bytes of volumes that are still on it.
    pub remaining: u64,
    /// True while something is in the way.
    pub is_blocked: bool,
}

/// A physical volume with something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DrainingDisk {
    /// LVM's UUID of it.
    uuid: String,
    path: String,
    request: EvacuationRequest,
}

impl Queued for DrainingDisk {
    fn uuid(&self) -> &str {
        &self.uuid
    }
}

/// The facts about a group that decide whether something can be moved: when they change it is tried again at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FreeSpace {
    /// Bytes that are free where LVM may make volumes.
    allocatable: u64,
    /// Bytes that are free on any disk.
    anywhere: u64,
    missing_pvs: u64,
    pvs: usize,
}

/// The evacuations of one volume group.
pub(super) struct Evacuation<R> {
    group: GroupHandle<R>,
    queue: RetryQueue<FreeSpace>,
}

impl<R: Host> Evacuation<R> {
    pub(super) fn new(group: GroupHandle<R>) -> Self {
        Self { group, queue: RetryQueue::new(BACKOFF) }
    }

    /// Empties the physical volumes of the group that carry the tag `topolvm.io/evacuate=...`, until the shutdown
    /// begins.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let shared = Arc::clone(self.group.shared());
        // LVM is never stopped in the middle: the end of it is waited for
        finish_begun_moves(&self.group).await;
        loop {
            if shared.shutdown.is_cancelled() {
                return Ok(());
            }
            update_disk_volumes(&shared, &self.group).await;
            let (disks, space) = draining_disks(&self.group);
            if self.group.evacuation.retain(|uuid| disks.iter().any(|disk| disk.uuid == *uuid)) {
                shared.publish();
            }
            match self.queue.next(&disks, space, Instant::now()) {
                Next::Due(disk) => {
                    let advanced = self.advance(&disk).await;
                    self.record(&disk, space, advanced);
                }
                Next::Wait(until) => tokio::select! {
                    () = shared.shutdown.cancelled() => return Ok(()),
                    () = self.group.evacuation.refreshed.notified() => {}
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
                },
            }
        }
    }

    /// Stores the outcome of a step.
    fn record(&mut self, disk: &DrainingDisk, space: FreeSpace, advanced: Result<Progress, Error>) {
        let shared = self.group.shared();
        match advanced {
            Ok(progress) => {
                match progress {
                    Progress::Advanced(pause) => self.queue.advanced(&disk.uuid, Instant::now() + pause),
                    Progress::Waits => self.queue.retry_later(&disk.uuid, space, Instant::now()),
                }
                if self.group.evacuation.clear_obstacle(&disk.uuid) {
                    shared.publish();
                }
            }
            Err(error) => {
                self.queue.retry_later(&disk.uuid, space, Instant::now());
                record_obstacle(shared, &self.group, &disk.uuid, &disk.path, &error);
            }
        }
    }

    /// Moves one piece from a disk, or takes the disk out of its group.
    async fn advance(&self, disk: &DrainingDisk) -> Result<Progress, Error> {
        let at_once = Progress::Advanced(Duration::ZERO);
        let wanted = match self.plan(disk).await? {
            Step::Move(wanted) => wanted,
            Step::Nothing => return Ok(at_once),
            Step::Wait => return Ok(Progress::Waits),
        };
        let started = Instant::now();
        if let Err(error) = read_piece(self.group.shared(), &wanted).await? {
            self.leave_behind(disk, &wanted.volume, &format!("cannot be read: {error}"));
            return Ok(at_once);
        }
        // A volume that is moved cannot be changed: a task that wants to change it waits for this, and is next
        let moves = Arc::new(self.group.lock_moves().await);
        let (marking, uuid) = (Arc::clone(&moves), disk.uuid.clone());
        let planning = async move |mut group: LockedGroup<R>| {
            let step = plan_step(&mut group, &uuid).await?;
            if let Step::Move(planned) = &step {
                // While the group is locked, so that no other task has just begun to change the volume
                marking.set_moving(&planned.owner, planned.source());
            }
            Ok(step)
        };
        let Step::Move(planned) = self.group.with_lock(planning).await? else { return Ok(at_once) };
        if !planned.is_same_piece(&wanted) {
            return Ok(at_once);
        }
        let bytes = planned.bytes;
        tracing::debug!(vg = %self.group.name, disk = disk.path, volume = planned.volume, bytes, "moving a piece");
        let moved = move_piece(&moves, *planned).await;
        if matches!(moved, Err(Error::Lvm(lvm::Error::NoSpace(_)))) {
            // The space was allocated since the piece was planned: a new plan reports what is lacking
            self.plan(disk).await?;
        }
        moved?;
        Ok(Progress::Advanced(pause_after(bytes, started.elapsed(), disk.request)))
    }

    async fn plan(&self, disk: &DrainingDisk) -> Result<Step, Error> {
        let uuid = disk.uuid.clone();
        let planning = async move |mut group: LockedGroup<R>| plan_step(&mut group, &uuid).await;
        self.group.with_lock(planning).await
    }

    /// Leaves a volume where it is because disks fail, and goes on with the others.
    fn leave_behind(&self, disk: &DrainingDisk, volume: &str, error: &str) {
        let again = Instant::now() + FAILURE_PAUSE;
        if self.group.evacuation.set_unreadable(&disk.uuid, volume, error, again) {
            let (vg, disk) = (&self.group.name, &disk.path);
            tracing::error!(%vg, disk, volume, error, "cannot move a volume from a disk that is emptied; it stays");
            self.group.shared().publish();
        }
    }
}

/// Returns the physical volumes of a group that something is to be done with, and what decides whether it is possible.
fn draining_disks(group: &Group) -> (Vec<DrainingDisk>, FreeSpace) {
    let Some(known) = group.cached() else { return (Vec::new(), FreeSpace::default()) };
    let draining = known.pvs.iter().filter(|_| request::is_ours(&known)).filter_map(|pv| {
        let request = EvacuationRequest::of(pv);
        let used = pv.size.saturating_sub(pv.free);
        let is_stopped = group.evacuation.stopped(&pv.uuid).is_some();
        let is_due = match request {
            Some(request) => used > 0 || request.remove || pv.allocatable || is_stopped,
            None => VacatedExtents::are_on(pv),
        };
        let request = request.unwrap_or_default();
        is_due.then(|| DrainingDisk { uuid: pv.uuid.clone(), path: pv.path.clone(), request })
    });
    let space = FreeSpace {
        allocatable: known.allocatable_bytes(),
        anywhere: known.free,
        missing_pvs: known.missing_pvs,
        pvs: known.pvs.len(),
    };
    (draining.collect(), space)
}

/// Returns the physical volumes of a group that are being emptied.
pub(super) fn evacuation_status(group: &Group) -> Vec<EvacuationStatus> {
    let known = group.cached();
    let pvs = known.iter().flat_map(|known| &known.pvs);
    let draining = pvs.filter_map(|pv| {
        let entry = group.evacuation.entry_of(pv)?;
        Some(EvacuationStatus {
            volume_group: group.name.to_string(),
            disk: pv.path.clone(),
            remaining: entry.remaining,
            is_blocked: entry.is_blocked(),
        })
    });
    draining.collect()
}
