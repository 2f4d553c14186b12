//! The port [`Devices`]: metadata headers, device-mapper devices and disks of the fake LVM.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lvm::{
    Device, DeviceStatus, Devices, GroupLock, Host, LogicalVolume, PhysicalVolume, Version, VgName, VolumeGroup,
    Wipeable,
};

use super::wipe::Held;
use super::{FakeLvm, FakeVolume};

/// Returns the condition of a device in addition to its fill, as the kernel and dm-thin report it.
fn condition(volume: &FakeVolume) -> String {
    format!("{} {}", volume.attr.get(8..9).unwrap_or_default(), volume.discards)
}

impl Devices for FakeLvm {
    fn version(&self, pv: &PhysicalVolume) -> io::Result<Option<Version>> {
        self.shared.hanging.pass(&pv.uuid);
        let state = self.state();
        let group = state.groups.values().find(|group| pv.uuid.starts_with(&format!("{}-", group.uuid)));
        let group = group.ok_or(io::ErrorKind::NotFound)?;
        let index: u32 = pv.uuid.rsplit('-').next().and_then(|index| index.parse().ok()).unwrap_or(u32::MAX);
        if index < group.missing_pvs || group.is_unreadable {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Some(Version { vg_uuid: group.uuid.clone(), seqno: group.seqno }))
    }

    fn read_through(&self, _: &PhysicalVolume, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn status(&self, vg: &VolumeGroup, volume: &LogicalVolume) -> io::Result<Option<DeviceStatus>> {
        let state = self.state();
        let volume = state.groups.get(vg.name.as_str()).and_then(|group| group.volumes.get(&*volume.name));
        Ok(volume.filter(|volume| volume.active).map(|volume| DeviceStatus {
            open_count: u32::from(volume.open) + u32::from(volume.held),
            fill: volume.attr.starts_with('t').then_some((volume.data_percent, volume.metadata_percent)),
            mapped_sectors: volume.attr.starts_with('V').then_some(volume.mapped_sectors),
            condition: condition(volume),
        }))
    }

    fn mapped(&self) -> io::Result<HashMap<String, Device>> {
        let state = self.state();
        if state.devices_are_hidden {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mapped = state.groups.iter().flat_map(|(vg, group)| {
            let active = group.volumes.iter().filter(|(_, volume)| volume.active);
            active.map(move |(name, volume)| {
                let layer = if volume.attr.starts_with('t') { "-tpool" } else { "" };
                let name = format!("{}-{}{layer}", vg.replace('-', "--"), name.replace('-', "--"));
                (name, Device { major: 253, minor: volume.minor })
            })
        });
        Ok(mapped.collect())
    }

    fn is_move_failing(&self, _: &VgName) -> io::Result<bool> {
        Ok(false)
    }

    fn volumes_below(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let group = state.groups.values().find(|group| group.pv_paths().any(|pv| pv == path));
        Ok(group.and_then(|group| group.below.clone()).into_iter().collect())
    }

    fn partitions(&self) -> io::Result<String> {
        let state = self.state();
        let disks: BTreeMap<_, _> =
            state.groups.values().map(|group| (&group.uuid, group.pvs - group.missing_pvs)).collect();
        Ok(format!("{disks:?}"))
    }

    fn hold(&self, vg: &VgName, volume: &LogicalVolume) -> io::Result<Box<dyn Wipeable>> {
        Ok(Box::new(Held::new(self, vg.as_str(), volume)?))
    }

    /// Fails: no other program changes the fake LVM.
    fn lock_group(&self, _: &Path, _: &VgName, _: Duration) -> io::Result<GroupLock> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Host for FakeLvm {
    type Devices = Self;

    fn devices(&self) -> Arc<Self> {
        Arc::new(self.clone())
    }

    /// Returns no directory: the disks are in memory as well.
    fn root(&self) -> PathBuf {
        PathBuf::new()
    }
}
