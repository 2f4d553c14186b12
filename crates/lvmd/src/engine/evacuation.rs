//! Empties physical volumes in the background: moves what lies on them to the others of their group, in pieces, one at
//! a time in each group. The wish to do so is a tag in LVM's metadata, see [`EvacuationWish`].

mod cut_moves;
mod queue;
mod request;
mod step;
mod vacated;

use std::sync::Arc;
use std::time::Duration;

use lvm::Host;
use tokio::time::{Instant, sleep_until};
use topolvm_runtime::{CancellationToken, error_chain};

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::tags::{EvacuationWish, VacatedExtents};
use queue::{LeavingDisk, Next, Queue, Room};
use step::Step;

pub(super) use request::find_disk;

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
pub(crate) struct EvacuationStatus {
    pub(crate) volume_group: String,
    /// Its device.
    pub(crate) disk: String,
    /// Bytes of volumes that are still on it.
    pub(crate) remaining: u64,
    pub(crate) is_blocked: bool,
}

/// Empties the physical volumes of a group that carry the tag `topolvm.io/evacuate=...`, until the shutdown begins.
pub(super) async fn evacuate_disks<R: Host>(
    engine: Engine<R>,
    group: Arc<Group>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    // LVM is never stopped in the middle: the end of it is waited for
    engine.finish_begun_moves(&group).await;
    let mut queue = Queue::default();
    loop {
        if shutdown.is_cancelled() {
            return Ok(());
        }
        engine.update_disk_volumes(&group).await;
        let (disks, room) = leaving_disks(&group);
        if group.evacuation.retain(|uuid| disks.iter().any(|disk| disk.uuid == *uuid)) {
            engine.publish();
        }
        match queue.next(&disks, room, Instant::now()) {
            Next::Advance(disk) => match engine.advance(&group, &disk).await {
                Ok(progress) => {
                    match progress {
                        Progress::Advanced(pause) => queue.advanced(&disk.uuid, Instant::now() + pause),
                        Progress::Waits => queue.retry_later(&disk.uuid, room, Instant::now()),
                    }
                    if group.evacuation.clear_obstacle(&disk.uuid) {
                        engine.publish();
                    }
                }
                Err(error) => {
                    queue.retry_later(&disk.uuid, room, Instant::now());
                    engine.record_obstacle(&group, &disk.uuid, &disk.path, &error);
                }
            },
            Next::Wait(until) => tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = group.evacuation.refreshed.notified() => {}
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            },
        }
    }
}

/// Returns the physical volumes of a group that something is to be done with, and what decides whether it is possible.
fn leaving_disks(group: &Group) -> (Vec<LeavingDisk>, Room) {
    let Some(known) = group.cached() else { return (Vec::new(), Room::default()) };
    let leaving = known.pvs.iter().filter(|_| request::is_ours(&known)).filter_map(|pv| {
        let wish = EvacuationWish::of(pv);
        let used = pv.size.saturating_sub(pv.free);
        let is_stopped = group.evacuation.stopped(&pv.uuid).is_some();
        let is_due = match wish {
            Some(wish) => used > 0 || wish.remove || pv.allocatable || is_stopped,
            None => VacatedExtents::are_on(pv),
        };
        is_due.then(|| LeavingDisk { uuid: pv.uuid.clone(), path: pv.path.clone(), wish: wish.unwrap_or_default() })
    });
    let room = Room {
        free: known.allocatable_bytes(),
        free_anywhere: known.free,
        missing_pvs: known.missing_pvs,
        pvs: known.pvs.len(),
    };
    (leaving.collect(), room)
}

impl<R: Host> Engine<R> {
    /// Returns the physical volumes that are being emptied.
    pub(crate) fn evacuation_status(&self) -> Vec<EvacuationStatus> {
        let of_group = |group: &Arc<Group>| {
            let known = group.cached();
            let pvs = known.iter().flat_map(|known| &known.pvs);
            let leaving = pvs.filter_map(|pv| {
                let entry = group.evacuation.entry_of(pv)?;
                Some(EvacuationStatus {
                    volume_group: group.name.to_string(),
                    disk: pv.path.clone(),
                    remaining: entry.remaining,
                    is_blocked: entry.is_blocked(),
                })
            });
            leaving.collect::<Vec<_>>()
        };
        self.groups().values().flat_map(of_group).collect()
    }

    /// Moves one piece from a disk, or takes the disk out of its group.
    async fn advance(&self, group: &Arc<Group>, disk: &LeavingDisk) -> Result<Progress, Error> {
        let at_once = Progress::Advanced(Duration::ZERO);
        let wanted = match self.plan_move(group, disk).await? {
            Step::Move(wanted) => wanted,
            Step::Nothing => return Ok(at_once),
            Step::Wait => return Ok(Progress::Waits),
        };
        let started = Instant::now();
        if let Err(error) = self.read_piece(&wanted).await? {
            self.leave_behind(group, disk, &wanted.volume, &format!("cannot be read: {error}"));
            return Ok(at_once);
        }
        // A volume that is moved cannot be changed: who wants to change it waits for this, and is next
        let _motion = group.evacuation.begin_motion().await;
        let uuid = disk.uuid.clone();
        let planning = async move |engine: Self, group: Arc<Group>| {
            let step = engine.plan_step(&group, &uuid).await?;
            if let Step::Move(planned) = &step {
                group.evacuation.set_moving(&planned.owner, planned.source());
            }
            Ok(step)
        };
        let Step::Move(planned) = self.with_lock(Arc::clone(group), planning).await? else { return Ok(at_once) };
        if !planned.is_same_piece(&wanted) {
            return Ok(at_once);
        }
        let bytes = planned.bytes;
        tracing::debug!(vg = %group.name, disk = disk.path, volume = planned.volume, bytes, "moving a piece");
        let moved = self.move_piece(group, *planned).await;
        if matches!(moved, Err(Error::Lvm(lvm::Error::NoSpace(_)))) {
            // Somebody took the room since the piece was planned: a new plan says what is lacking
            self.plan_move(group, disk).await?;
        }
        moved?;
        Ok(Progress::Advanced(step::pause_after(bytes, started.elapsed(), disk.wish)))
    }

    async fn plan_move(&self, group: &Arc<Group>, disk: &LeavingDisk) -> Result<Step, Error> {
        let uuid = disk.uuid.clone();
        let planning = async move |engine: Self, group: Arc<Group>| engine.plan_step(&group, &uuid).await;
        self.with_lock(Arc::clone(group), planning).await
    }

    /// Leaves a volume where it is because disks fail, and goes on with the others.
    fn leave_behind(&self, group: &Group, disk: &LeavingDisk, volume: &str, error: &str) {
        let again = Instant::now() + FAILURE_PAUSE;
        if group.evacuation.set_unreadable(&disk.uuid, volume, error, again) {
            let (vg, disk) = (&group.name, &disk.path);
            tracing::error!(%vg, disk, volume, error, "cannot move a volume from a disk that is emptied; it stays");
            self.publish();
        }
    }

    fn record_obstacle(&self, group: &Group, uuid: &str, disk: &str, error: &Error) {
        let error = error_chain(error);
        if group.evacuation.set_obstacle(uuid, &error) {
            let vg = &group.name;
            tracing::error!(%vg, disk, error, "cannot empty a disk for now; it is tried again");
            self.publish();
        }
    }
}
