//! Returns volumes with the device that they have now, activates those that have none, and resumes those that a killed
//! LVM left suspended. LVM suspends a volume for a moment while it takes a snapshot of it or grows it; when it is
//! killed just then, every process that uses the volume waits for ever.

use std::collections::HashMap;

use lvm::{Device, Host, LogicalVolume, LvName, RepairError, State, VgName, is_device_of_move};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::tags;

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

    /// Resumes the suspended volumes that lvmd created; others may be suspended on purpose. LVM holds the lock of the
    /// group for as long as it suspends something, and for a report, so nobody else will resume what a report shows as
    /// suspended. The caller holds the group's lock.
    pub(super) async fn resume_suspended(&self, group: &Group) {
        let Some(known) = group.cached() else { return };
        let suspended =
            known.volumes.iter().filter(|volume| tags::is_managed(volume) && volume.attr.state() == State::Suspended);
        let names: Vec<LvName> = suspended.filter_map(|volume| volume.name.parse().ok()).collect();
        if !names.is_empty() {
            // LVM would resume with tables that were loaded for a move, of which the metadata may know nothing
            self.resume_cut_moves(group).await;
        }
        for name in names {
            tracing::warn!(vg = %group.name, %name, "resuming a volume that a killed LVM left suspended");
            if let Err(error) = self.store_outcome(group, self.inner.lvm.refresh(&group.name, &name).await) {
                let error = error_chain(&error);
                let vg = &group.name;
                tracing::error!(%vg, %name, error, "cannot resume a volume; all who use it wait, see `dmsetup info`");
            }
        }
    }

    /// Mends what a killed pvmove has left in the kernel.
    pub(super) async fn resume_cut_moves(&self, group: &Group) {
        let vg = &group.name;
        let mended = async {
            let devices = group.mapped_devices(&self.devices()).await.map_err(RepairError::Devices)?;
            let is_moved = devices.keys().any(|device| is_device_of_move(vg, device));
            if is_moved { self.inner.lvm.resume_cut_moves(vg).await } else { Ok(Vec::new()) }
        };
        match mended.await {
            Ok(devices) if devices.is_empty() => {}
            Ok(devices) => tracing::warn!(%vg, ?devices, "mended the devices that a killed pvmove has left"),
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(%vg, error, "cannot mend what a killed pvmove has left; see `dmsetup info`");
            }
        }
    }
}

/// Replaces the cached device of a volume by the one that device-mapper has, if device-mapper answered.
pub(super) fn set_device(volume: &mut LogicalVolume, vg: &VgName, devices: Option<&HashMap<String, Device>>) {
    if let Some(devices) = devices {
        volume.device = devices.get(&volume.mapper_name(vg)).copied();
    }
}
