//! Removing volumes. Those of a class that wipes are put aside, and removed when they are wiped.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, VolumeGroup, Wipe};

use super::Engine;
use super::change::{check_complete, check_pool, existing};
use super::group::Group;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::marks;

impl<R: Host> Engine<R> {
    /// Removes a volume. [`Error::VolumeNotFound`] means that the volume group was read and the volume is not in it.
    ///
    /// A class that is no longer configured does not keep its volumes from being removed: they say themselves that lvmd made
    /// them.
    pub async fn remove(&self, class: &str, name: LvName) -> Result<(), Error> {
        let class = match self.class(class) {
            Ok(class) => class,
            Err(unknown) => return self.remove_of_former_class(unknown, name).await,
        };
        let group = self.group(&class.volume_group)?;
        self.change(group, async move |engine, group| engine.remove_in_turn(&group, &class, &name).await).await
    }

    async fn remove_in_turn(&self, group: &Group, class: &DeviceClass, name: &LvName) -> Result<(), Error> {
        let known = self.current(group).await?;
        let volume = existing(class, &known, name)?;
        self.remove_alone(group, &known, volume, name, Some(class)).await
    }

    /// Looks for the volume in all groups of the machine. That it is in none proves nothing: its group may be missing.
    async fn remove_of_former_class(&self, unknown: Error, name: LvName) -> Result<(), Error> {
        let is_it = |volume: &LogicalVolume| *volume.name == *name.as_str() && marks::is_managed(volume);
        for known in self.inner.lvm.all_volume_groups().await? {
            if known.volumes.iter().any(is_it) {
                let group = self.group_or_new(known);
                tracing::warn!(vg = %group.name, %name, "removing a volume of a device class that is no longer configured");
                let remove = async move |engine: Self, group: Arc<Group>| {
                    let known = engine.current(&group).await?;
                    match known.volume(name.as_str()) {
                        Some(volume) if marks::is_managed(volume) => {
                            // The one that took the place of its class says what happens to its contents.
                            let class = engine.class_that_owns(&group.name, volume);
                            engine.remove_alone(&group, &known, volume, &name, class.as_deref()).await
                        }
                        _ => Err(Error::VolumeNotFound { vg: group.name.clone(), name }),
                    }
                };
                return self.change(group, remove).await;
            }
        }
        Err(unknown)
    }

    /// Removes a volume that nothing depends on.
    async fn remove_alone(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        class: Option<&DeviceClass>,
    ) -> Result<(), Error> {
        if marks::is_wiping(volume) {
            return self.put_aside(group, volume, name).await;
        }
        // lvremove --force takes them along without a word.
        let snapshots: Vec<_> = known.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        if let Some(class) = class {
            check_pool(class, known)?;
            if let Some(how) = class.wipe.filter(|_| class.thin_pool.is_none()) {
                return self.begin_to_wipe(group, known, volume, name, how).await;
            }
        }
        Ok(self.take(group, self.inner.lvm.remove(&group.name, name).await)?)
    }

    /// Leaves a volume to those who wipe. From then on it is gone as far as anybody is told, but not its room.
    async fn begin_to_wipe(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        how: Wipe,
    ) -> Result<(), Error> {
        check_complete(known)?;
        if volume.origin.is_some() || !volume.attr.is_overwritten_in_place() {
            let why = "is of a kind that cannot be wiped by writing to it; remove it with lvremove".to_owned();
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        if self.is_open(group, known, volume).await? {
            return Err(Error::InUse { vg: group.name.clone(), name: name.clone() });
        }
        let tags = self.inner.maker.wiping(how)?;
        let aside = marks::aside_name(volume)?;
        Ok(self.take(group, self.inner.lvm.set_aside(&group.name, name, &tags, &aside).await)?)
    }

    /// Gives the name of a volume that is being wiped free. When a crash came between its two changes it still has it.
    pub(super) async fn put_aside(&self, group: &Group, volume: &LogicalVolume, name: &LvName) -> Result<(), Error> {
        let aside = marks::aside_name(volume)?;
        Ok(self.take(group, self.inner.lvm.set_aside(&group.name, name, &[], &aside).await)?)
    }

    /// Whether somebody has the device of a volume open.
    pub(super) async fn is_open(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
    ) -> Result<bool, Error> {
        if let Ok(count) = group.open_count(self.devices(), known, volume).await {
            return Ok(count.is_some_and(|count| count > 0));
        }
        // LVM sees more than we do from here.
        self.ask_lvm(group).await?;
        let known = group.known()?;
        let now = known.volumes.iter().find(|other| other.uuid == volume.uuid);
        Ok(now.is_none_or(|volume| volume.attr.is_open()))
    }
}
