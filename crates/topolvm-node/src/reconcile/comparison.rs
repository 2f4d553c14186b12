//! Compares the objects of the node with LVM, where an administrator may have removed, renamed or deactivated LVs, and
//! with the LVs that have no object.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lvmd_client::{DeviceClasses, Lv};
use tokio::sync::{mpsc, watch};
use topolvm_api::LogicalVolume;
use topolvm_kube::LogicalVolumes;

use super::clients::Clients;
use super::differences::{Differences, VolumeGauges};
use super::handle_orphans::HandleOrphans;
use super::listing::Listing;
use super::object_writer::ObjectWriter;
use crate::volume_devices::VolumeDevices;

/// Shortest time between two comparisons of all volumes. lvmd reports each change, and many volumes may come or go at
/// once.
const COMPARE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between two comparisons: lvmd does not report an object that goes, or an LV that an administrator
/// deactivates.
const COMPARE_AGAIN: Duration = Duration::from_mins(1);

/// Compares the objects of the node with LVM.
#[derive(Debug)]
pub(super) struct LvmComparison {
    pub(super) clients: Arc<Clients>,
    pub(super) writer: Arc<ObjectWriter>,
    /// Devices of the volumes, for their metrics.
    pub(super) devices: VolumeDevices,
    /// Handles the LVs without an object; if there is none, these are only counted.
    pub(super) orphans: Box<dyn HandleOrphans>,
}

impl LvmComparison {
    /// Compares the objects with LVM whenever lvmd reports a change, and at times, and sends the names of those whose
    /// condition must change to `changed`. Ends when the sender of `device_classes` is gone.
    pub(super) async fn run(
        &self,
        own: &LogicalVolumes,
        mut device_classes: watch::Receiver<DeviceClasses>,
        gauges: &VolumeGauges,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        if !own.wait_until_listed().await {
            return;
        }
        let mut before = Differences::default();
        loop {
            let DeviceClasses { is_connected, classes, .. } = device_classes.borrow_and_update().clone();
            if is_connected {
                let configured = classes.into_iter().map(|class| class.name);
                let (found, listing) = self.find_differences(own, configured, changed).await;
                found.log_new(&before);
                gauges.show(&found);
                before = found;
                self.orphans.handle(listing).await;
            }
            tokio::time::sleep(COMPARE_INTERVAL).await;
            if let Ok(Err(_)) = tokio::time::timeout(self.compare_again(), device_classes.changed()).await {
                return;
            }
        }
    }

    /// Returns the longest time until the next comparison. If LVs without an object are put into quarantine, it is the
    /// time between two checks of them.
    fn compare_again(&self) -> Duration {
        self.orphans.next_check().map_or(COMPARE_AGAIN, |interval| COMPARE_AGAIN.min(interval))
    }

    /// Compares all objects with the lists of their device classes and of the `configured` ones.
    async fn find_differences(
        &self,
        own: &LogicalVolumes,
        configured: impl Iterator<Item = String>,
        changed: &mpsc::UnboundedSender<String>,
    ) -> (Differences, Listing) {
        let mut classes: BTreeMap<String, Vec<String>> = configured.map(|class| (class, Vec::new())).collect();
        // From before the lists: an LV that is removed meanwhile goes before its object does
        let objects = own.state();
        let ids: HashSet<&str> =
            objects.iter().flat_map(|volume| volume.volume_id().into_iter().chain([volume.uid()])).collect();
        for volume in &objects {
            let names = classes.entry(volume.spec.device_class.clone()).or_default();
            names.extend(self.must_be_in_lvm(volume).then(|| volume.name().to_owned()));
        }
        let (mut found, mut listing) = (Differences::default(), Listing::default());
        for (class, names) in classes {
            // If the class or volume group cannot be listed, it is not known whether its volumes are lost
            let listed = self.clients.lvmd.list(&class).await.ok();
            let listed: Option<HashMap<String, Lv>> =
                listed.map(|lvs| lvs.into_iter().map(|lv| (lv.name.clone(), lv)).collect());
            // One that was made meanwhile has an object by now
            let has_object = |id: &str| ids.contains(id) || own.find(id).is_some();
            listing.add(&class, listed.as_ref(), has_object);
            if let Some(listed) = &listed {
                // Also of one whose object does not report the LV yet: lvmd was faster
                self.devices.replace(&class, listed.values().filter(|lv| has_object(&lv.name)));
            }
            listing.remember(names.iter().filter_map(|name| own.get(name)), listed.as_ref());
            self.find_lost(own, names, listed.as_ref(), &mut found, changed).await;
        }
        found.add_orphans(&listing);
        (found, listing)
    }

    /// Adds the lost and the inactive ones of these objects of a device class to `found`.
    async fn find_lost(
        &self,
        own: &LogicalVolumes,
        names: Vec<String>,
        listed: Option<&HashMap<String, Lv>>,
        found: &mut Differences,
        changed: &mpsc::UnboundedSender<String>,
    ) {
        for name in names {
            let Some(volume) = own.get(&name) else { continue };
            let exists = match listed {
                Some(listed) => self.is_in_lvm(&volume, listed).await,
                None => None,
            };
            // Read again: its LV may have been removed because of a deletion that came in between
            let Some(volume) = own.get(&name).filter(|volume| self.must_be_in_lvm(volume)) else { continue };
            let is_lost = exists.map_or_else(|| self.writer.lost.contains(&volume), |exists| !exists);
            if self.writer.lost.set(&volume, is_lost) {
                // The receiver is dropped only at shutdown
                drop(changed.send(name));
            }
            found.lost += i64::from(is_lost);
            let lv = listed.zip(volume.volume_id()).and_then(|(listed, id)| listed.get(id));
            found.inactive.extend(lv.filter(|lv| lv.number.is_none()).map(|lv| lv.name.clone()));
        }
    }

    /// Returns whether the LV of an object exists in LVM; `None` if that is unknown. An LV that is not in its device
    /// class may be where the class had its volumes before. lvmd starts LVM to be sure, so a volume that is already
    /// lost is not queried again.
    async fn is_in_lvm(&self, volume: &LogicalVolume, listed: &HashMap<String, Lv>) -> Option<bool> {
        let id = volume.volume_id()?;
        if listed.contains_key(id) {
            return Some(true);
        }
        if self.writer.lost.contains(volume) {
            return Some(false);
        }
        self.clients.lvmd.find(id, &volume.spec.device_class).await.ok().map(|found| found.is_some())
    }

    /// Returns whether the LV of an object must be in LVM.
    fn must_be_in_lvm(&self, volume: &LogicalVolume) -> bool {
        volume.volume_id().is_some() && !volume.is_deleting() && !self.clients.is_pending_deletion(volume)
    }
}
