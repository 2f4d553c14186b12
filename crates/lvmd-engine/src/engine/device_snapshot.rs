//! A snapshot of the devices of a volume group, taken without LVM, and its comparison with what is cached of the group.

use std::collections::{BTreeMap, HashMap};
use std::io;

use lvm::{Device, DeviceStatus, Devices, LogicalVolume, PhysicalVolume, Version, VolumeGroup};

use super::metadata_headers::HeaderRead;

/// The freshness of the cached report of a volume group, as far as the devices show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The report is up to date.
    Current,
    /// Something has changed since the report.
    Outdated,
    /// The devices do not show it.
    Unknown,
}

/// The devices of a volume group at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DeviceSnapshot {
    /// The newest metadata version on any physical volume.
    newest: Option<Version>,
    /// The readability of each physical volume, by its UUID.
    readable: BTreeMap<String, bool>,
    /// The device of each volume, by its name in device-mapper.
    mapped: HashMap<String, Device>,
    /// The kernel's status of thin pools and RAIDs, by the name of the volume.
    conditions: BTreeMap<String, String>,
    /// Fill of the thin pools in percent, data and metadata, by the name of the pool.
    fills: BTreeMap<String, (f64, f64)>,
    /// All block devices of the machine, as long as one of the group is missing.
    block_devices: Option<String>,
}

impl DeviceSnapshot {
    /// Begins a snapshot with the metadata headers that were read from the group's physical volumes.
    pub(super) fn of_headers(vg_uuid: &str, headers: Vec<HeaderRead>) -> Self {
        Self {
            newest: newest_version(vg_uuid, &headers),
            readable: headers.into_iter().map(|(pv, version)| (pv, version.is_ok())).collect(),
            ..Self::default()
        }
    }

    /// Completes the snapshot with the state that device-mapper and the kernel report. Blocks.
    pub(super) fn with_device_mapper(
        mut self,
        devices: &impl Devices,
        group: Option<&VolumeGroup>,
    ) -> io::Result<Self> {
        if let Some(group) = group {
            self.mapped = devices.mapped()?;
            for volume in group.volumes.iter().filter(|volume| volume.attr.is_thin_pool() || volume.attr.is_raid()) {
                let (fill, condition) = match devices.status(group, volume) {
                    Ok(Some(DeviceStatus { fill, condition, .. })) => (fill, condition),
                    Ok(None) => (None, "inactive".to_owned()),
                    Err(error) => (None, error.to_string()),
                };
                self.fills.extend(fill.map(|fill| (volume.name.to_string(), fill)));
                self.conditions.insert(volume.name.to_string(), condition);
            }
        }
        if group.is_none_or(|group| group.missing_pvs > 0) || self.readable.values().any(|readable| !readable) {
            self.block_devices = Some(devices.partitions()?);
        }
        Ok(self)
    }

    /// Sets the devices as LVM reports them, so that only a difference from the report counts as a change.
    pub(super) fn set_reported(&mut self, group: &VolumeGroup) {
        self.add_disks(group);
        let device_of = |volume: &LogicalVolume| Some((volume.mapper_name(&group.name), volume.device?));
        self.mapped = group.volumes.iter().filter_map(device_of).collect();
    }

    /// Adds the disks that a report of LVM has and the snapshot has not: one that has just joined may fail at once.
    pub(super) fn add_disks(&mut self, group: &VolumeGroup) {
        let is_present = |pv: &PhysicalVolume| (pv.uuid.clone(), pv.device.is_some());
        for (pv, is_present) in group.pvs.iter().map(is_present) {
            self.readable.entry(pv).or_insert(is_present);
        }
    }

    /// Returns the fill of the thin pools in percent, data and metadata, by the name of the pool.
    pub(super) fn pool_fills(&self) -> &BTreeMap<String, (f64, f64)> {
        &self.fills
    }

    /// Returns whether the kernel ignores discards in a thin pool: `discards=ignore` of lvmthin(7).
    pub(super) fn ignores_discards(&self, pool: &str) -> bool {
        self.conditions.get(pool).is_some_and(|condition| condition.split(' ').any(|flag| flag == "ignore_discard"))
    }

    /// Decides whether the cached report is still up to date, from this snapshot and the one at the time of the report.
    /// An irregularity that existed at that time is no change.
    pub(super) fn compare(&self, before: &Self, cached: Option<&VolumeGroup>) -> Freshness {
        let is_current = cached.zip(self.newest.as_ref()).map(|(group, newest)| is_version_of(newest, group));
        // Also on the disks of a group that LVM did not find, which may have come back.
        let is_rewritten = (is_current == Some(false) || cached.is_none()) && before.newest != self.newest;
        let has_moved = cached.is_some_and(|group| {
            group.volumes.iter().any(|volume| {
                let name = volume.mapper_name(&group.name);
                let device = self.mapped.get(&name);
                device != volume.device.as_ref() && device != before.mapped.get(&name)
            })
        });
        if is_rewritten
            || has_moved
            || any_changed(&before.readable, &self.readable)
            || any_changed(&before.conditions, &self.conditions)
            || before.block_devices.is_some() && before.block_devices != self.block_devices
        {
            return Freshness::Outdated;
        }
        // LVM goes without a disk that answers again until it scans the disks.
        let is_disk_back =
            self.readable.values().all(|readable| *readable) && cached.is_some_and(|group| group.missing_pvs > 0);
        // Metadata of another version existed at the last report as well, and LVM ignored it, for example on an old
        // disk.
        if is_current == Some(true) && !is_disk_back { Freshness::Current } else { Freshness::Unknown }
    }
}

/// Returns whether a header has the version of this report.
pub(super) fn is_version_of(version: &Version, group: &VolumeGroup) -> bool {
    version.vg_uuid == group.uuid && version.seqno == group.seqno
}

/// Returns the newest metadata version of the group, or else of another group that took its place on the disks.
pub(super) fn newest_version(vg_uuid: &str, headers: &[HeaderRead]) -> Option<Version> {
    let versions = headers.iter().filter_map(|(_, version)| version.as_ref().ok()?.clone());
    versions.max_by_key(|version| (version.vg_uuid == vg_uuid, version.seqno))
}

/// Returns whether a value differs that both maps have. A key that is new belongs to something that lvmd created
/// meanwhile.
fn any_changed<V: PartialEq>(before: &BTreeMap<String, V>, now: &BTreeMap<String, V>) -> bool {
    now.iter().any(|(key, value)| before.get(key).is_some_and(|before| before != value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_disk_that_fails_at_once_is_noticed() {
        let pv = |uuid: &str, minor| PhysicalVolume {
            path: format!("/dev/{uuid}"),
            uuid: uuid.to_owned(),
            device: Some(Device { major: 8, minor }),
            size: 0,
            free: 0,
            free_areas: Vec::new(),
            allocatable: true,
            tags: Box::default(),
        };
        let report = VolumeGroup {
            name: "vg".parse().unwrap(),
            uuid: "g".to_owned(),
            seqno: 2,
            size: 0,
            free: 0,
            extent_size: 4 << 20,
            missing_pvs: 0,
            tags: Box::default(),
            max_volumes: 0,
            is_writable: true,
            system_id: None,
            exported: false,
            pvs: vec![pv("old", 0), pv("new", 1)],
            volumes: Vec::new(),
        };
        let version = || Ok(Some(Version { vg_uuid: "g".to_owned(), seqno: 2 }));
        let old = || ("old".to_owned(), version());
        // Taken before LVM reported, of the disks that were known by then
        let mut before = DeviceSnapshot::of_headers("g", vec![old()]);
        before.add_disks(&report);
        let failed = ("new".to_owned(), Err(io::Error::other("gone")));
        let now = DeviceSnapshot::of_headers("g", vec![old(), failed]);
        assert_eq!(now.compare(&before, Some(&report)), Freshness::Outdated);
        let well = DeviceSnapshot::of_headers("g", vec![old(), ("new".to_owned(), version())]);
        assert_eq!(well.compare(&before, Some(&report)), Freshness::Current);
    }

    #[test]
    fn kernel_status_shows_that_a_pool_ignores_discards() {
        for (condition, expected) in [
            ("rw ignore_discard queue_if_no_space - 1024", true),
            ("rw discard_passdown queue_if_no_space - 1024", false),
            ("rw no_discard_passdown queue_if_no_space - 1024", false),
            ("inactive", false),
        ] {
            let conditions = [("pool".to_owned(), condition.to_owned())].into();
            let snapshot = DeviceSnapshot { conditions, ..DeviceSnapshot::default() };
            assert_eq!(snapshot.ignores_discards("pool"), expected, "{condition}");
            assert!(!snapshot.ignores_discards("another"), "{condition}");
        }
    }
}
