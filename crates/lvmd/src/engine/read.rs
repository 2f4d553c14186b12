//! Answers questions about volumes and free space from the cache. LVM is asked only when device-mapper cannot say which
//! devices there are, or when no cached group has the volume.

use std::collections::HashMap;
use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, VolumeGroup};

use super::activate::set_device;
use super::group::Group;
use super::preconditions::free_bytes;
use super::refusals::CreationOptions;
use super::state::Engine;
use super::storage_health::class_refusal;
use crate::error::Error;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Lists the volumes of a class, also those that lvmd did not create: everything in its thin pool, or everything in
    /// its volume group that is not part of a thin pool.
    pub async fn list(&self, class: &str) -> Result<Vec<LogicalVolume>, Error> {
        let class = self.class(class)?;
        let group = self.group(&class.volume_group)?;
        let devices = self.mapped_devices(&group).await;
        if devices.is_none() {
            self.lock_and_refresh(&group).await?;
        }
        let known = group.try_cached()?;
        // A missing thin pool is an error, not an empty list.
        free_bytes(&class, &known)?;
        let is_listed = |volume: &&LogicalVolume| class.owns(volume) && !tags::is_hidden(volume);
        let mut volumes: Vec<_> = known.volumes.iter().filter(is_listed).cloned().collect();
        for volume in &mut volumes {
            set_device(volume, &known.name, devices.as_ref());
        }
        Ok(volumes)
    }

    /// Returns the bytes that the thin ones of these volumes of a class use in their pool, by name. Volumes that are
    /// not active are left out, and all while device-mapper does not answer.
    pub async fn thin_usage(&self, class: &str, volumes: &[LogicalVolume]) -> HashMap<Box<str>, u64> {
        let thin: Vec<_> =
            volumes.iter().filter(|volume| volume.attr.is_thin() && volume.device.is_some()).cloned().collect();
        let group = self.class(class).and_then(|class| self.group(&class.volume_group));
        let Ok(group) = group else { return HashMap::new() };
        let Some(known) = group.cached().filter(|_| !thin.is_empty()) else { return HashMap::new() };
        group.thin_usage(&self.devices(), known, thin).await.unwrap_or_default()
    }

    /// Returns a volume by class and name: from the place of the class, from another cached group, or from any other
    /// group of the machine, for which LVM is asked.
    pub async fn find(&self, class: &str, name: &LvName) -> Result<Option<LogicalVolume>, Error> {
        let in_class = match self.group_of_class(class) {
            Ok((group, class)) => self.cached_volume(&group, name).await.and_then(|(known, volume)| {
                // A missing thin pool is an error, not an empty list.
                free_bytes(&class, &known)?;
                Ok(volume.filter(|volume| class.owns(volume)))
            }),
            Err(error) => Err(error),
        };
        if let Ok(Some(volume)) = in_class {
            return Ok(Some(volume));
        }
        let requested = self.requested_class(class);
        let elsewhere = match self.search_cached_groups(name, requested) {
            Ok(None) => self.search_other_groups(name, requested).await.map(|(group, _)| group),
            found => found,
        };
        match (elsewhere, in_class) {
            (Ok(Some(group)), _) => Ok(self.cached_volume(&group, name).await?.1),
            // Of several groups that cannot be read, that of the class is where the volume most likely is
            (Err(_), Err(error @ Error::VolumeGroupUnreadable { .. })) | (Err(error), _) => Err(error),
            (Ok(None), in_class) => in_class,
        }
    }

    /// Returns the free bytes of a device class, after the spare; 0 while LVM creates no volumes in it.
    pub fn free_bytes(&self, class: &str) -> Result<u64, Error> {
        let class = self.class(class)?;
        let group = self.group(&class.volume_group)?;
        let bytes = free_bytes(&class, &*group.try_cached()?)?;
        let is_withheld = group.usable().is_none()
            || class_refusal(&class, &group).is_some()
            || group.refusals.withholds(&CreationOptions::of_class(&class.name));
        Ok(if is_withheld { 0 } else { bytes })
    }

    async fn cached_volume(
        &self,
        group: &Arc<Group>,
        name: &LvName,
    ) -> Result<(Arc<VolumeGroup>, Option<LogicalVolume>), Error> {
        let devices = self.mapped_devices(group).await;
        if devices.is_none() {
            self.lock_and_refresh(group).await?;
        }
        let known = group.try_cached()?;
        let mut volume = known.volume(name.as_str()).filter(|volume| !tags::is_hidden(volume)).cloned();
        if let Some(volume) = &mut volume {
            set_device(volume, &known.name, devices.as_ref());
        }
        Ok((known, volume))
    }
}
