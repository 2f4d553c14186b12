//! Returns volumes of a locked group with the device that they have now, and activates those that have none.

use std::collections::HashMap;
use std::sync::Arc;

use lvm::{Device, Host, LogicalVolume, LvName, VgName, VolumeGroup};

use super::state::LockedGroup;
use crate::error::Error;

impl<R: Host> LockedGroup<R> {
    /// Returns an existing volume with its present device. Activates it if it has none: the caller wants to use it.
    pub(super) async fn ensure_active(&mut self, existing: &LogicalVolume) -> Result<LogicalVolume, Error> {
        let Ok(name) = existing.name.parse::<LvName>() else { return Ok(existing.clone()) };
        let volume = if let Some(devices) = self.shared().mapped_devices(self).await {
            let mut volume = existing.clone();
            set_device(&mut volume, &self.name, Some(&devices));
            volume
        } else {
            self.refresh().await?;
            self.created_volume(&name)?
        };
        if volume.device.is_some() {
            return Ok(volume);
        }
        tracing::info!(vg = %self.name, %name, "activating a volume that a client wants to use");
        let activated = self.lvm().activate(&self.name, &name).await;
        self.store_outcome(activated)?;
        self.created_volume(&name)
    }

    /// Returns whether a process has the device of a volume open.
    pub(super) async fn is_open(&mut self, known: &Arc<VolumeGroup>, volume: &LogicalVolume) -> Result<bool, Error> {
        if let Ok(status) = self.device_status(&self.shared().devices(), known, volume).await {
            return Ok(status.is_some_and(|status| status.open_count > 0));
        }
        // LVM reports it where device-mapper is not accessible: LVM runs in the namespaces of the host.
        self.refresh().await?;
        let known = self.try_cached()?;
        let now = known.volume_of_uuid(&volume.uuid);
        Ok(now.is_none_or(|volume| volume.attr.is_open()))
    }
}

/// Replaces the cached device of a volume by the one that device-mapper has, if device-mapper answered.
pub(super) fn set_device(volume: &mut LogicalVolume, vg: &VgName, devices: Option<&HashMap<String, Device>>) {
    if let Some(devices) = devices {
        volume.device = devices.get(&volume.mapper_name(vg)).copied();
    }
}
