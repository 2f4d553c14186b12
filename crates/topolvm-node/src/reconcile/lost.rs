//! Notices logical volumes that somebody removed or renamed by hand, and says so in the condition, an Event and a metric.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use topolvm_api::LogicalVolume;
use topolvm_kube::LogicalVolumes;

use super::{Error, Reconciler};
use crate::capacity::Pools;

/// Between two comparisons of all volumes. lvmd tells of each change, and many volumes may come or go at once.
const BETWEEN: Duration = Duration::from_secs(1);

/// How many volumes of the node are lost.
#[derive(Clone, Debug, Default)]
pub struct LostVolumes(Gauge);

impl LostVolumes {
    /// Makes the gauge and adds it to the registry.
    pub fn register(registry: &mut Registry, node: &str) -> Self {
        let lost = Self::default();
        let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
        registry.register(
            "topolvm_lost_volumes",
            "LogicalVolumes of the node whose logical volume is not in LVM any more, because somebody removed or renamed it",
            lost.0.clone(),
        );
        lost
    }
}

/// Whether the LVs of objects are lost, by UID, as far as the objects may not say so yet.
pub(super) type Verdicts = HashMap<String, bool>;

impl Reconciler {
    /// Compares the objects with LVM whenever lvmd tells of a change, and names those of which something must be said to `changed`. Ends when lvmd
    /// is not followed any more.
    pub(super) async fn follow_lost(
        &self,
        own: &LogicalVolumes,
        mut pools: watch::Receiver<Pools>,
        gauge: &LostVolumes,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        if !own.wait_until_listed().await {
            return;
        }
        loop {
            let is_connected = pools.borrow_and_update().is_connected;
            if is_connected {
                self.compare(own, gauge, changed).await;
            }
            tokio::time::sleep(BETWEEN).await;
            if pools.changed().await.is_err() {
                return;
            }
        }
    }

    async fn compare(&self, own: &LogicalVolumes, gauge: &LostVolumes, changed: &mpsc::UnboundedSender<String>) {
        let mut classes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in own.names() {
            if let Some(volume) = own.get(&name).filter(|volume| self.should_be_there(volume)) {
                classes.entry(volume.spec.device_class.clone()).or_default().push(name);
            }
        }
        let mut lost = 0;
        for (class, names) in classes {
            // A class or volume group that cannot be listed says nothing of its volumes
            let listed: Option<HashSet<String>> =
                self.lvmd.list(&class).await.map(|lvs| lvs.into_iter().map(|lv| lv.name).collect()).ok();
            for name in names {
                let Some(volume) = own.get(&name) else { continue };
                let is_there = match &listed {
                    Some(listed) => self.is_there(&volume, listed).await,
                    None => None,
                };
                // Looked at again: its LV may have been removed because of a deletion that came in between
                let Some(volume) = own.get(&name).filter(|volume| self.should_be_there(volume)) else { continue };
                let is_lost = is_there.map_or_else(|| self.is_lost(&volume), |is_there| !is_there);
                if self.judge(&volume, is_lost) {
                    // Nobody listens only when everything ends
                    drop(changed.send(name));
                }
                lost += i64::from(is_lost);
            }
        }
        gauge.0.set(lost);
    }

    /// Returns whether the LV of an object is in LVM, or `None` where nobody can tell. An LV that is not in its device class may be where
    /// the class had its volumes before; lvmd starts LVM to be sure, so that one that is lost already is not asked for again.
    async fn is_there(&self, volume: &LogicalVolume, listed: &HashSet<String>) -> Option<bool> {
        let id = volume.volume_id()?;
        if listed.contains(id) {
            return Some(true);
        }
        if self.is_lost(volume) {
            return Some(false);
        }
        self.lvmd.find(id, &volume.spec.device_class).await.ok().map(|found| found.is_some())
    }

    /// An object whose LV must be in LVM.
    fn should_be_there(&self, volume: &LogicalVolume) -> bool {
        volume.volume_id().is_some() && !volume.is_deleting() && !self.is_pending_deletion(volume)
    }

    /// Notes whether an LV is lost, and returns whether that is news.
    fn judge(&self, volume: &LogicalVolume, is_lost: bool) -> bool {
        let mut verdicts = self.lock_verdicts();
        let is_news = verdicts.get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost()) != is_lost;
        if is_lost || volume.is_lost() {
            verdicts.insert(volume.uid().to_owned(), is_lost);
        } else {
            verdicts.remove(volume.uid());
        }
        is_news
    }

    /// Whether the LV of an object is lost. What an earlier process has found is so until it is found otherwise.
    pub(super) fn is_lost(&self, volume: &LogicalVolume) -> bool {
        self.lock_verdicts().get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost())
    }

    /// Lets the condition say whether the LV is lost.
    pub(super) async fn report_lost(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let is_lost = self.is_lost(volume);
        if is_lost == volume.is_lost() {
            return Ok(());
        }
        let written = self.write(volume, volume.status.clone().unwrap_or_default()).await?;
        if is_lost {
            let message = topolvm_api::lost_message(volume);
            tracing::error!(volume = volume.name(), lv = volume.volume_id(), message, "the logical volume is lost");
            self.events.lost(&written, &message).await;
        } else {
            tracing::info!(volume = volume.name(), lv = volume.volume_id(), "the logical volume is back");
        }
        Ok(())
    }
}
