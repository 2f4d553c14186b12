//! The evacuation of physical volumes of one volume group, as far as it is not in LVM's metadata: what keeps them from
//! being moved, and the lock of those who move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lvm::{PhysicalVolume, VgName, VolumeGroup};
use lvmd_config::tags::{EvacuationRequest, is_wiping_name};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use crate::error::{Error, IncompleteMove};
use crate::storage_report::{DiskVolumes, EvacuationEntry, EvacuationState};

/// Time for which a change of a volume waits for the end of the piece that is being moved.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// The held lock under which pieces are moved. Dropping it records that no piece is being moved, and releases the lock.
#[derive(Debug)]
pub(super) struct MoveGuard {
    moving: Arc<Mutex<Option<Moving>>>,
    _lock: OwnedMutexGuard<()>,
}

impl MoveGuard {
    /// Stores that a piece of this volume, which is no hidden one, is moved from a disk.
    pub(super) fn set_moving(&self, volume: &str, disk: &str) {
        let moving = Moving { volume: volume.to_owned(), disk: disk.to_owned(), since: Instant::now() };
        *self.moving.lock() = Some(moving);
    }
}

impl Drop for MoveGuard {
    fn drop(&mut self) {
        *self.moving.lock() = None;
    }
}

/// The volume that is being moved, and from where.
#[derive(Clone, Debug)]
struct Moving {
    volume: String,
    disk: String,
    since: Instant,
}

impl Moving {
    fn unknown() -> Self {
        Self { volume: "a volume".to_owned(), disk: "a disk".to_owned(), since: Instant::now() }
    }
}

/// The evacuations of one volume group.
#[derive(Debug, Default)]
pub(super) struct EvacuationProgress {
    /// Notified when LVM has reported on the group.
    pub(super) refreshed: Notify,
    /// Held while a piece is moved, and by those who wait for the end of it.
    move_lock: Arc<tokio::sync::Mutex<()>>,
    /// The volume of which a piece is being moved.
    moving: Arc<Mutex<Option<Moving>>>,
    /// The reasons for which physical volumes could not be emptied when it was last tried, by UUID.
    obstacles: Mutex<BTreeMap<String, String>>,
    /// The volumes that could not be read, by UUID of the physical volume that they are on.
    unreadable: Mutex<BTreeMap<String, BTreeMap<String, Unreadable>>>,
    /// The physical volumes from which nothing is moved any more, by UUID: the only good copy may be on them.
    stopped: Mutex<BTreeMap<String, IncompleteMove>>,
    /// The volumes on physical volumes that are missing or are to be emptied, by UUID of these.
    volumes: Mutex<BTreeMap<String, DiskVolumes>>,
    /// Facts from which these follow, of when they were last asked for.
    volumes_version: Mutex<Option<VolumesVersion>>,
}

/// The count of changes of the group; and UUID, whether it is missing, and the volumes that fail of each physical
/// volume that counts.
pub(super) type VolumesVersion = (u64, Vec<(String, bool, BTreeSet<String>)>);

/// A volume of which a part could not be read when it was to be moved.
#[derive(Debug)]
struct Unreadable {
    why: String,
    /// It is left alone until then.
    again: Instant,
}

/// Most volumes that a text names.
const MOST_NAMES: usize = 5;

impl EvacuationProgress {
    /// Waits until no piece is being moved, and keeps the next from being begun.
    pub(super) async fn lock_moves(&self) -> MoveGuard {
        let lock = Arc::clone(&self.move_lock).lock_owned().await;
        MoveGuard { moving: Arc::clone(&self.moving), _lock: lock }
    }

    /// Does the same for a caller that does not wait for a disk that hangs.
    pub(super) async fn lock_moves_in_time(&self, vg: &VgName) -> Result<MoveGuard, Error> {
        timeout(MOVE_TIMEOUT, self.lock_moves()).await.map_err(|_| {
            let Moving { volume, disk, since } = self.moving.lock().clone().unwrap_or_else(Moving::unknown);
            Error::MoveTakesLong { vg: vg.clone(), volume, disk, seconds: since.elapsed().as_secs() }
        })
    }

    /// Returns whether a part of this volume, or of the pool that it is in, is being moved.
    pub(super) fn is_moving(&self, known: &VolumeGroup, name: &str) -> bool {
        let moving = self.moving.lock();
        let Some(Moving { volume, .. }) = &*moving else { return false };
        let pool = known.volume(name).and_then(|volume| volume.pool.as_deref());
        volume == name || pool == Some(volume)
    }

    /// Stores why a physical volume cannot be emptied now. Returns whether that is news.
    pub(super) fn set_obstacle(&self, uuid: &str, why: &str) -> bool {
        let before = self.obstacles.lock().insert(uuid.to_owned(), why.to_owned());
        before.as_deref() != Some(why)
    }

    /// Forgets why it could not be emptied. Returns whether there was a reason.
    pub(super) fn clear_obstacle(&self, uuid: &str) -> bool {
        self.obstacles.lock().remove(uuid).is_some()
    }

    /// Has nothing moved from a physical volume any more until its evacuation ends.
    pub(super) fn stop(&self, uuid: &str, lost: IncompleteMove) {
        self.stopped.lock().insert(uuid.to_owned(), lost);
    }

    /// Returns why nothing is moved from a physical volume any more.
    pub(super) fn stopped(&self, uuid: &str) -> Option<IncompleteMove> {
        self.stopped.lock().get(uuid).cloned()
    }

    /// Stores that a volume cannot be read, and is not to be moved before this moment. Returns whether that is news.
    pub(super) fn set_unreadable(&self, uuid: &str, volume: &str, why: &str, again: Instant) -> bool {
        let new = Unreadable { why: why.to_owned(), again };
        let mut unreadable = self.unreadable.lock();
        let before = unreadable.entry(uuid.to_owned()).or_default().insert(volume.to_owned(), new);
        before.is_none_or(|before| before.why != why)
    }

    /// Returns the volumes that are not to be moved at this moment.
    pub(super) fn left_behind(&self, uuid: &str, now: Instant) -> BTreeSet<String> {
        let unreadable = self.unreadable.lock();
        let waiting = unreadable.get(uuid).into_iter().flatten().filter(|(_, volume)| volume.again > now);
        waiting.map(|(volume, _)| volume.clone()).collect()
    }

    /// Returns the volumes that could not be read or copied.
    pub(super) fn failing_volumes(&self, uuid: &str) -> BTreeSet<String> {
        self.unreadable.lock().get(uuid).into_iter().flatten().map(|(volume, _)| volume.clone()).collect()
    }

    /// Stores from which facts the volumes of disks are about to be found. Returns whether they are others than before.
    pub(super) fn begin_volumes(&self, version: Option<VolumesVersion>) -> bool {
        let mut known = self.volumes_version.lock();
        if *known == version {
            return false;
        }
        *known = version;
        true
    }

    /// Stores the volumes of disks. Returns whether they are news.
    pub(super) fn set_volumes(&self, found: BTreeMap<String, DiskVolumes>) -> bool {
        let mut volumes = self.volumes.lock();
        let is_new = *volumes != found;
        *volumes = found;
        is_new
    }

    /// Returns the volumes of a physical volume that is missing or is to be emptied.
    pub(super) fn volumes_of(&self, uuid: &str) -> DiskVolumes {
        self.volumes.lock().get(uuid).cloned().unwrap_or_default()
    }

    /// Returns whether nothing but volumes that are being wiped is on a physical volume that is to be emptied.
    fn has_only_wiped(&self, uuid: &str) -> bool {
        let volumes = self.volumes_of(uuid).volumes;
        !volumes.is_empty() && volumes.iter().all(|volume| is_wiping_name(&volume.name))
    }

    /// Forgets volumes that are not on the physical volume any more.
    pub(super) fn forget_unreadable(&self, uuid: &str, exists: impl Fn(&str) -> bool) {
        if let Some(volumes) = self.unreadable.lock().get_mut(uuid) {
            volumes.retain(|volume, _| exists(volume));
        }
    }

    /// Returns a text on the volumes that could not be read; `None` when all could.
    pub(super) fn unreadable(&self, uuid: &str) -> Option<String> {
        let unreadable = self.unreadable.lock();
        let volumes = unreadable.get(uuid).filter(|volumes| !volumes.is_empty())?;
        let named = volumes.iter().take(MOST_NAMES).map(|(volume, Unreadable { why, .. })| format!("{volume} ({why})"));
        let mut text = named.collect::<Vec<_>>().join(", ");
        if let Some(more) = volumes.len().checked_sub(MOST_NAMES).filter(|more| *more > 0) {
            text = format!("{text} and {more} more");
        }
        Some(text)
    }

    /// Forgets physical volumes that are not to be emptied any more. Returns whether one of them could not be.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) -> bool {
        let (mut obstacles, mut unreadable) = (self.obstacles.lock(), self.unreadable.lock());
        let before = obstacles.len() + unreadable.len();
        obstacles.retain(|uuid, _| exists(uuid));
        unreadable.retain(|uuid, volumes| exists(uuid) && !volumes.is_empty());
        self.stopped.lock().retain(|uuid, _| exists(uuid));
        obstacles.len() + unreadable.len() < before
    }

    /// Returns how far the evacuation of a physical volume is; `None` if it is not to be emptied.
    pub(super) fn entry_of(&self, pv: &PhysicalVolume) -> Option<EvacuationEntry> {
        let request = EvacuationRequest::of(pv)?;
        let remaining = pv.size.saturating_sub(pv.free);
        let obstacle = self.obstacles.lock().get(&pv.uuid).cloned();
        let unreadable = || self.unreadable(&pv.uuid).filter(|_| remaining > 0);
        let unreadable = || unreadable().map(|why| Error::VolumesStay { disk: pv.path.clone(), why }.to_string());
        let (state, message) = match obstacle.or_else(unreadable) {
            Some(why) => (EvacuationState::Blocked, why),
            None if remaining > 0 && self.has_only_wiped(&pv.uuid) => (
                EvacuationState::Moving,
                "its volumes have left it, and what they left there is being wiped".to_owned(),
            ),
            None if remaining > 0 => {
                (EvacuationState::Moving, "its volumes are being moved to other disks of the group".to_owned())
            }
            None if request.remove => (EvacuationState::Empty, "nothing is on it; it leaves the group".to_owned()),
            None => (EvacuationState::Empty, "nothing is on it, and nothing new gets there".to_owned()),
        };
        Some(EvacuationEntry { state, message, remaining, remove: request.remove })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage_report::{DiskVolume, VolumeState};

    #[tokio::test(start_paused = true)]
    async fn unreadable_volume_is_skipped_and_reported_until_it_is_gone() {
        let (progress, now) = (EvacuationProgress::default(), Instant::now());
        let again = now + Duration::from_mins(1);
        assert!(progress.set_unreadable("d", "b", "EIO", again) && !progress.set_unreadable("d", "b", "EIO", again));
        for volume in ["a", "c", "d", "e", "f", "g"] {
            assert!(progress.set_unreadable("d", volume, "EIO", now));
        }
        assert_eq!(progress.left_behind("d", now), ["b".to_owned()].into());
        assert_eq!(progress.left_behind("d", again), [].into());
        let text = progress.unreadable("d").unwrap();
        assert!(text.starts_with("a (EIO), b (EIO)") && text.ends_with("e (EIO) and 2 more"), "{text}");
        progress.forget_unreadable("d", |volume| volume == "b");
        assert_eq!(progress.unreadable("d").unwrap(), "b (EIO)");
        progress.forget_unreadable("d", |_| false);
        assert_eq!((progress.unreadable("d"), progress.unreadable("other")), (None, None));
        assert!(progress.retain(|_| true) && !progress.retain(|_| true));
    }

    #[test]
    fn evacuation_that_has_only_to_wipe_says_so() {
        let progress = EvacuationProgress::default();
        let pv = PhysicalVolume {
            path: "/dev/sdb".to_owned(),
            uuid: "d".to_owned(),
            device: None,
            size: 10,
            free: 4,
            free_areas: Vec::new(),
            allocatable: false,
            tags: ["topolvm.io/evacuate=remove:0".into()].into(),
        };
        let message = |names: &[&str]| {
            let volume = |name: &&str| DiskVolume { name: (*name).to_owned(), state: VolumeState::Whole };
            let volumes = DiskVolumes { volumes: names.iter().map(volume).collect(), omitted: 0 };
            progress.set_volumes([("d".to_owned(), volumes)].into());
            progress.entry_of(&pv).unwrap().message
        };
        assert!(message(&["topolvm.wiping.x"]).ends_with("being wiped"));
        for names in [&[][..], &["topolvm.wiping.x", "a"]] {
            assert!(message(names).contains("are being moved"));
        }
    }
}
