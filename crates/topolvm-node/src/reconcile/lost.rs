//! Detects lost volumes: LVs that somebody removed or renamed by hand. Reports them in the condition, an Event and a
//! metric.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use topolvm_api::LogicalVolume;
use topolvm_kube::LogicalVolumes;

use super::{ReconcileError, Reconciler};
use crate::capacity::DeviceClasses;

/// Shortest time between two comparisons of all volumes. lvmd tells of each change, and many volumes may come or go
/// at once.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);

/// Gauge of the lost volumes of the node.
#[derive(Clone, Debug, Default)]
pub struct LostVolumes(Gauge);

impl LostVolumes {
    /// Makes the gauge and registers it.
    pub fn register(registry: &mut Registry, node: &str) -> Self {
        let lost = Self::default();
        let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
        registry.register(
            "topolvm_lost_volumes",
            "LogicalVolumes of the node whose logical volume is not in LVM any more, because somebody removed or \
             renamed it",
            lost.0.clone(),
        );
        lost
    }
}

impl Reconciler {
    /// Compares the objects with LVM whenever lvmd reports a change, and sends the names of those whose condition
    /// must change to `changed`. Ends when the sender of `device_classes` is gone.
    pub(super) async fn detect_lost_volumes(
        &self,
        own: &LogicalVolumes,
        mut device_classes: watch::Receiver<DeviceClasses>,
        gauge: &LostVolumes,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        if !own.wait_until_listed().await {
            return;
        }
        loop {
            let is_connected = device_classes.borrow_and_update().is_connected;
            if is_connected {
                self.compare_with_lvm(own, gauge, changed).await;
            }
            tokio::time::sleep(COMPARE_INTERVAL).await;
            if device_classes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Compares all objects with the lists of their device classes, and sets the gauge.
    async fn compare_with_lvm(
        &self,
        own: &LogicalVolumes,
        gauge: &LostVolumes,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        let mut classes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in own.names() {
            if let Some(volume) = own.get(&name).filter(|volume| self.must_be_in_lvm(volume)) {
                classes.entry(volume.spec.device_class.clone()).or_default().push(name);
            }
        }
        let mut lost = 0;
        for (class, names) in classes {
            // If the class or volume group cannot be listed, it is not known whether its volumes are lost
            let listed: Option<HashSet<String>> =
                self.lvmd.list(&class).await.map(|lvs| lvs.into_iter().map(|lv| lv.name).collect()).ok();
            for name in names {
                let Some(volume) = own.get(&name) else { continue };
                let is_there = match &listed {
                    Some(listed) => self.is_in_lvm(&volume, listed).await,
                    None => None,
                };
                // Read again: its LV may have been removed because of a deletion that came in between
                let Some(volume) = own.get(&name).filter(|volume| self.must_be_in_lvm(volume)) else { continue };
                let is_lost = is_there.map_or_else(|| self.is_lost(&volume), |is_there| !is_there);
                if self.set_lost(&volume, is_lost) {
                    // The receiver is dropped only at shutdown
                    drop(changed.send(name));
                }
                lost += i64::from(is_lost);
            }
        }
        gauge.0.set(lost);
    }

    /// Returns whether the LV of an object is in LVM; `None` if nobody can tell. An LV that is not in its device
    /// class may be where the class had its volumes before; lvmd starts LVM to be sure, so that one that is lost
    /// already is not asked for again.
    async fn is_in_lvm(&self, volume: &LogicalVolume, listed: &HashSet<String>) -> Option<bool> {
        let id = volume.volume_id()?;
        if listed.contains(id) {
            return Some(true);
        }
        if self.is_lost(volume) {
            return Some(false);
        }
        self.lvmd.find(id, &volume.spec.device_class).await.ok().map(|found| found.is_some())
    }

    /// Returns whether the LV of an object must be in LVM.
    fn must_be_in_lvm(&self, volume: &LogicalVolume) -> bool {
        volume.volume_id().is_some() && !volume.is_deleting() && !self.is_pending_deletion(volume)
    }

    /// Stores whether an LV is lost, and returns whether that has changed.
    fn set_lost(&self, volume: &LogicalVolume, is_lost: bool) -> bool {
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
            tracing::error!(volume = volume.name(), lv = volume.volume_id(), message, "the logical volume is lost");
            self.events.volume_lost(&written, &message).await;
        } else {
            tracing::info!(volume = volume.name(), lv = volume.volume_id(), "the logical volume is back");
        }
        Ok(())
    }
}
