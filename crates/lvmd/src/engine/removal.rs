//! Removing volumes.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, VolumeGroup};

use super::Engine;
use super::change::existing;
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
        existing(class, &known, name)?;
        self.remove_alone(group, &known, name).await
    }

    /// Looks for the volume in all groups of the machine. That it is in none proves nothing: its group may be missing.
    async fn remove_of_former_class(&self, unknown: Error, name: LvName) -> Result<(), Error> {
        let is_it = |volume: &LogicalVolume| volume.name == name.as_str() && marks::is_managed(volume);
        for known in self.inner.lvm.all_volume_groups().await? {
            if known.volumes.iter().any(is_it) {
                let group = self.group_or_new(known);
                tracing::warn!(vg = %group.name, %name, "removing a volume of a device class that is no longer configured");
                let remove = async move |engine: Self, group: Arc<Group>| {
                    let known = engine.current(&group).await?;
                    match known.volume(name.as_str()) {
                        Some(volume) if marks::is_managed(volume) => engine.remove_alone(&group, &known, &name).await,
                        _ => Err(Error::VolumeNotFound { vg: group.name.clone(), name }),
                    }
                };
                return self.change(group, remove).await;
            }
        }
        Err(unknown)
    }

    /// Removes a volume that nothing depends on.
    async fn remove_alone(&self, group: &Group, known: &VolumeGroup, name: &LvName) -> Result<(), Error> {
        // lvremove --force takes them along without a word.
        let snapshots: Vec<_> = known.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        Ok(self.take(group, self.inner.lvm.remove(&group.name, name).await)?)
    }
}
