//! Detects lost volumes: LVs that were removed or renamed by hand. Reports them in the condition and an Event.

use std::collections::HashMap;

use topolvm_api::LogicalVolume;

use super::{ReconcileError, Reconciler};
use crate::lvmd_client::Lv;

impl Reconciler {
    /// Returns whether the LV of an object exists in LVM; `None` if that is unknown. An LV that is not in its device
    /// class may be where the class had its volumes before. lvmd starts LVM to be sure, so a volume that is already
    /// lost is not queried again.
    pub(super) async fn is_in_lvm(&self, volume: &LogicalVolume, listed: &HashMap<String, Lv>) -> Option<bool> {
        let id = volume.volume_id()?;
        if listed.contains_key(id) {
            return Some(true);
        }
        if self.is_lost(volume) {
            return Some(false);
        }
        self.lvmd.find(id, &volume.spec.device_class).await.ok().map(|found| found.is_some())
    }

    /// Returns whether the LV of an object must be in LVM.
    pub(super) fn must_be_in_lvm(&self, volume: &LogicalVolume) -> bool {
        volume.volume_id().is_some() && !volume.is_deleting() && !self.is_pending_deletion(volume)
    }

    /// Stores whether an LV is lost, and returns whether that has changed.
    pub(super) fn set_lost(&self, volume: &LogicalVolume, is_lost: bool) -> bool {
        let mut lost = self.lost.lock();
        let is_news = lost.get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost()) != is_lost;
        if is_lost || volume.is_lost() {
            lost.insert(volume.uid().to_owned(), is_lost);
        } else {
            lost.remove(volume.uid());
        }
        is_news
    }

    /// Returns whether the LV of an object is lost. What an earlier process has written to the object counts until it
    /// is found otherwise.
    pub(super) fn is_lost(&self, volume: &LogicalVolume) -> bool {
        self.lost.lock().get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost())
    }

    /// Writes to the condition whether the LV is lost.
    pub(super) async fn report_lost(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let is_lost = self.is_lost(volume);
        if is_lost == volume.is_lost() {
            return Ok(());
        }
        let written = self.write_status(volume, volume.status.clone().unwrap_or_default()).await?;
        if is_lost {
            let message = topolvm_api::lost_message(volume);
            tracing::error!(
                volume = volume.name(),
                lv = volume.volume_id(),
                message,
                "the logical volume no longer exists in LVM"
            );
            self.events.volume_lost(&written, &message).await;
        } else {
            tracing::info!(volume = volume.name(), lv = volume.volume_id(), "the logical volume exists again");
        }
        Ok(())
    }
}
