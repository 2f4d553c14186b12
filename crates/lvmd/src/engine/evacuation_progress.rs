//! The evacuation of physical volumes of one volume group, as far as it is not in LVM's metadata: what keeps them from
//! being moved, and the lock of those who move.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::PhysicalVolume;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::inventory::{EvacuationEntry, EvacuationState};
use crate::tags::EvacuationWish;

/// The evacuations of one volume group.
#[derive(Debug, Default)]
pub(super) struct EvacuationProgress {
    /// Notified when LVM has reported on the group.
    pub(super) refreshed: Notify,
    /// Held while a piece is moved, and by those who wait for the end of it. Who has it may wait for the lock under
    /// which the group is changed, and not the other way round.
    motion_lock: Arc<tokio::sync::Mutex<()>>,
    /// The reasons for which physical volumes could not be emptied when it was last tried, by UUID.
    obstacles: Mutex<BTreeMap<String, String>>,
}

impl EvacuationProgress {
    /// Waits until no piece is being moved, and keeps the next from being begun.
    pub(super) async fn hold_still(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.motion_lock).lock_owned().await
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

    /// Forgets physical volumes that are not to be emptied any more. Returns whether one of them could not be.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) -> bool {
        let mut obstacles = self.obstacles.lock();
        let before = obstacles.len();
        obstacles.retain(|uuid, _| exists(uuid));
        obstacles.len() < before
    }

    /// Returns how far the evacuation of a physical volume is; `None` if it is not to be emptied.
    pub(super) fn entry_of(&self, pv: &PhysicalVolume) -> Option<EvacuationEntry> {
        let wish = EvacuationWish::of(pv)?;
        let remaining = pv.size.saturating_sub(pv.free);
        let (state, message) = match self.obstacles.lock().get(&pv.uuid) {
            Some(why) => (EvacuationState::Blocked, why.clone()),
            None if remaining > 0 => {
                (EvacuationState::Moving, "its volumes are being moved to other disks of the group".to_owned())
            }
            None if wish.remove => (EvacuationState::Empty, "nothing is on it; it leaves the group".to_owned()),
            None => (EvacuationState::Empty, "nothing is on it, and nothing new gets there".to_owned()),
        };
        Some(EvacuationEntry { state, message, remaining, remove: wish.remove })
    }
}
