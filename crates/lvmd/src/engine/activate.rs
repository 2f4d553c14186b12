//! Returns volumes with the device that they have now, and activates those that have none.

use std::collections::HashMap;

use lvm::{Device, Host, LogicalVolume, LvName, VgName};

use super::group::Group;
use super::state::Engine;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// Returns an existing volume with its present device. Activates it if it has none: who asks for the volume wants
    /// to use it.
    pub(super) async fn ensure_active(&self, group: &Group, existing: &LogicalVolume) -> Result<LogicalVolume, Error> {
        let Ok(name) = existing.name.parse::<LvName>() else { return Ok(existing.clone()) };
        let volume = if let Some(devices) = self.mapped_devices(group).await {
            let mut volume = existing.clone();
            set_device(&mut volume, &group.name, Some(&devices));
            volume
        } else {
            self.refresh(group).await?;
            group.created_volume(&name)?
        };
        if volume.device.is_some() {
            return Ok(volume);
        }
        tracing::info!(vg = %group.name, %name, "activating a volume that somebody wants to use");
        self.store_outcome(group, self.inner.lvm.activate(&group.name, &name).await)?;
        group.created_volume(&name)
    }
}

/// Replaces the cached device of a volume by the one that device-mapper has, if device-mapper answered.
pub(super) fn set_device(volume: &mut LogicalVolume, vg: &VgName, devices: Option<&HashMap<String, Device>>) {
    if let Some(devices) = devices {
        volume.device = devices.get(&volume.mapper_name(vg)).copied();
    }
}
