//! The cache and the lock of one volume group.
//!
//! Reads are answered from the cache without an LVM process. LVM counts the changes of a group's metadata and writes
//! the count on the physical volumes with each of them; as long as the count there is the cached one, nothing has
//! changed, whatever other programs are at work. What is not in the metadata, which devices there are and in which
//! condition, comes from device-mapper.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{Device, DeviceStatus, Devices, FullName, LogicalVolume, LvName, PhysicalVolume, VgName, VolumeGroup};
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use super::change_lock::{ChangeGuard, ChangeLock};
use super::change_queue::ChangeQueue;
use super::creation::Creation;
use super::device_snapshot::{DeviceSnapshot, Freshness, is_version_of, newest_version};
use super::evacuation_progress::EvacuationProgress;
use super::growth::Growth;
use super::metadata_headers::{HeaderRead, MetadataHeaders, READ_TIMEOUT};
use super::pool_maintenance::PoolMaintenance;
use super::refusals::Refusals;
use super::wipe_progress::WipeProgress;
use crate::error::Error;

/// Bytes in a sector of device-mapper.
const SECTOR: u64 = 512;

/// One volume group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: VgName,
    /// The lock under which the group is changed. It and that of [`EvacuationProgress`] are held across awaits.
    pub(super) change_lock: ChangeLock,
    headers: MetadataHeaders,
    /// Held while device-mapper is asked, which answers also while a disk hangs.
    device_mapper_lock: Arc<Mutex<()>>,
    cache: RwLock<Cache>,
    /// Notified when the cache has become stale.
    pub(super) refresh_needed: Notify,
    /// Notified when LVM has reported on the group.
    pub(super) refreshed: Notify,
    pub(super) wipe_progress: WipeProgress,
    pub(super) evacuation: EvacuationProgress,
    pub(super) pool_maintenance: PoolMaintenance,
    pub(super) refusals: Refusals,
    /// The creations that wait for the lock.
    pub(super) creations: ChangeQueue<Creation>,
    /// The growths that wait for the lock.
    pub(super) growths: ChangeQueue<Growth>,
}

#[derive(Debug)]
struct Cache {
    /// The last report of LVM; `None` if LVM reported that the group does not exist, or never read it.
    report: Option<Arc<VolumeGroup>>,
    /// The last report on a group that has gone since.
    lost: Option<Arc<VolumeGroup>>,
    /// Time of the last report of LVM.
    reported_at: Instant,
    /// The failure of LVM since then: the report may be outdated.
    stale_reason: Option<String>,
    /// The kind of that failure.
    failure: Failure,
    /// The devices at the time of the report.
    devices: DeviceSnapshot,
    /// The disks of the group when it last had them: where what is missing is searched for. One that only failed to
    /// answer, or a group that only has another name, comes back without any device coming or going.
    disks: Option<Disks>,
}

/// The kind of a failure of LVM to report on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A timeout: LVM works, slowly.
    Slow,
    /// LVM works, and nothing may be done in this group until an administrator changes something.
    UnusableGroup,
    /// Any other.
    Other,
}

/// The physical volumes of a group and LVM's UUID of the group.
#[derive(Clone, Debug)]
struct Disks {
    vg_uuid: String,
    pvs: Vec<PhysicalVolume>,
}

impl Disks {
    /// Returns the disks of the group, a missing one where it was before.
    fn of(group: &VolumeGroup, before: Option<&Self>) -> Self {
        let last_seen = |pv: &PhysicalVolume| {
            let mut earlier = before.into_iter().flat_map(|before| &before.pvs);
            earlier.find(|earlier| pv.device.is_none() && earlier.uuid == pv.uuid).unwrap_or(pv).clone()
        };
        Self { vg_uuid: group.uuid.clone(), pvs: group.pvs.iter().map(last_seen).collect() }
    }
}

impl Group {
    /// Caches a report that LVM has just given.
    pub(super) fn new(name: VgName, report: Option<VolumeGroup>) -> Self {
        let cache = Cache {
            report: None,
            lost: None,
            reported_at: Instant::now(),
            stale_reason: None,
            failure: Failure::Other,
            devices: DeviceSnapshot::default(),
            disks: None,
        };
        let group = Self {
            name,
            change_lock: ChangeLock::default(),
            headers: MetadataHeaders::default(),
            device_mapper_lock: Arc::default(),
            cache: RwLock::new(cache),
            refresh_needed: Notify::new(),
            refreshed: Notify::new(),
            wipe_progress: WipeProgress::default(),
            evacuation: EvacuationProgress::default(),
            pool_maintenance: PoolMaintenance::default(),
            refusals: Refusals::default(),
            creations: ChangeQueue::default(),
            growths: ChangeQueue::default(),
        };
        group.set_report(report);
        group
    }

    /// Returns the last report of LVM; `None` if LVM reported that the group does not exist, or never read it.
    pub(super) fn cached(&self) -> Option<Arc<VolumeGroup>> {
        self.cache.read().report.clone()
    }

    /// Returns the last report of LVM. Fails with [`Error::VolumeGroupMissing`] if LVM reported that the group does not
    /// exist, and with [`Error::VolumeGroupUnreadable`] if LVM has not read it yet.
    pub(super) fn try_cached(&self) -> Result<Arc<VolumeGroup>, Error> {
        let cache = self.cache.read();
        cache.report.clone().ok_or_else(|| match &cache.stale_reason {
            Some(why) => Error::VolumeGroupUnreadable { vg: self.name.clone(), why: why.clone() },
            None => Error::VolumeGroupMissing(self.name.clone()),
        })
    }

    /// Returns a volume that was just created or changed from the report that came with the change.
    pub(super) fn created_volume(&self, name: &LvName) -> Result<LogicalVolume, Error> {
        let vanished = || Error::Vanished(FullName::new(&self.name, name));
        self.try_cached()?.volume(name.as_str()).cloned().ok_or_else(vanished)
    }

    /// Returns the last report of LVM on the group, also on one that has gone since.
    pub(super) fn last_report(&self) -> Option<Arc<VolumeGroup>> {
        let cache = self.cache.read();
        cache.report.clone().or_else(|| cache.lost.clone())
    }

    /// Returns whether a volume of this name was in the group before the group went.
    pub(super) fn lost_volume(&self, name: &str) -> bool {
        self.cache.read().lost.as_ref().is_some_and(|lost| lost.volume(name).is_some())
    }

    /// Returns the path of the device that a physical volume of the group had when it was last there.
    pub(super) fn last_path(&self, uuid: &str) -> Option<String> {
        let cache = self.cache.read();
        let last_seen = cache.disks.as_ref()?.pvs.iter().find(|pv| pv.uuid == uuid)?;
        last_seen.device.map(|_| last_seen.path.clone())
    }

    /// Returns why the report may be outdated: the failure of LVM since then.
    pub(super) fn stale_reason(&self) -> Option<String> {
        self.cache.read().stale_reason.clone()
    }

    /// Returns the kind of that failure.
    pub(super) fn failure(&self) -> Failure {
        self.cache.read().failure
    }

    /// Returns the last report of LVM, unless the group cannot be used at present.
    pub(super) fn usable(&self) -> Option<Arc<VolumeGroup>> {
        let cache = self.cache.read();
        let is_unusable = cache.stale_reason.is_some() && cache.failure == Failure::UnusableGroup;
        cache.report.clone().filter(|_| !is_unusable)
    }

    /// Returns the time since the last report of LVM.
    pub(super) fn age(&self) -> Duration {
        self.cache.read().reported_at.elapsed()
    }

    /// Stores a report of LVM.
    pub(super) fn store_report(&self, _lock: &ChangeGuard, report: Option<VolumeGroup>) {
        self.set_report(report);
    }

    fn set_report(&self, report: Option<VolumeGroup>) {
        let mut cache = self.cache.write();
        if let Some(report) = &report {
            cache.devices.set_reported(report);
            cache.disks = Some(Disks::of(report, cache.disks.as_ref()));
        }
        let before = std::mem::replace(&mut cache.report, report.map(Arc::new));
        cache.lost = if cache.report.is_some() { None } else { before.or_else(|| cache.lost.take()) };
        cache.reported_at = Instant::now();
        cache.stale_reason = None;
        cache.failure = Failure::Other;
        drop(cache);
        self.refreshed.notify_one();
        self.evacuation.refreshed.notify_one();
    }

    /// Stores the snapshot of the devices that was taken just before the report.
    pub(super) fn store_device_snapshot(&self, _lock: &ChangeGuard, mut snapshot: DeviceSnapshot) {
        let mut cache = self.cache.write();
        if let Some(report) = &cache.report {
            snapshot.add_disks(report);
        }
        cache.devices = snapshot;
    }

    /// Notes that LVM failed to report. Returns whether the cache was not stale before.
    pub(super) fn mark_stale(&self, why: &str, failure: Failure) -> bool {
        let was_fresh = {
            let mut cache = self.cache.write();
            cache.failure = failure;
            cache.stale_reason.replace(why.to_owned()).is_none()
        };
        self.refresh_needed.notify_one();
        was_fresh
    }

    /// Stores the fill of the thin pools in percent, data and metadata. Returns whether any differs.
    pub(super) fn store_pool_fills(&self, fills: &BTreeMap<String, (f64, f64)>) -> bool {
        let mut cache = self.cache.write();
        let Some(report) = &mut cache.report else { return false };
        let differs = |report: &VolumeGroup, name: &String, fill: (f64, f64)| {
            let volume = report.volume(name);
            volume.is_some_and(|volume| volume.data_percent.zip(volume.metadata_percent) != Some(fill))
        };
        if !fills.iter().any(|(name, fill)| differs(report, name, *fill)) {
            return false;
        }
        for volume in &mut Arc::make_mut(report).volumes {
            if let Some((data, metadata)) = fills.get(&*volume.name) {
                (volume.data_percent, volume.metadata_percent) = (Some(*data), Some(*metadata));
            }
        }
        true
    }

    /// Compares the metadata headers on the disks with the cached report.
    pub(super) async fn compare_metadata<D: Devices>(&self, devices: &Arc<D>) -> Freshness {
        // Only LVM knows whether a disk that was missing is back.
        let is_reliable = |group: &Arc<VolumeGroup>| group.missing_pvs == 0 && self.stale_reason().is_none();
        let Some(group) = self.cached().filter(is_reliable) else { return Freshness::Unknown };
        let headers = self.headers.read(devices, &group.pvs).await;
        // LVM would hang on the disk as well, in the middle of a change. A report has a short timeout.
        let hangs =
            |(_, version): &HeaderRead| matches!(version, Err(error) if error.kind() == io::ErrorKind::TimedOut);
        match newest_version(&group.uuid, &headers) {
            _ if headers.iter().any(hangs) => Freshness::Unknown,
            None => Freshness::Unknown,
            Some(newest) if is_version_of(&newest, &group) => Freshness::Current,
            Some(_) => Freshness::Outdated,
        }
    }

    /// Takes a snapshot of the group's devices: metadata headers, device-mapper and the kernel's status.
    pub(super) async fn take_device_snapshot<D: Devices>(&self, devices: &Arc<D>) -> io::Result<DeviceSnapshot> {
        let (group, disks) = {
            let cache = self.cache.read();
            (cache.report.clone(), cache.disks.clone())
        };
        let snapshot = match disks {
            Some(Disks { vg_uuid, pvs }) => {
                DeviceSnapshot::of_headers(&vg_uuid, self.headers.read(devices, &pvs).await)
            }
            None => DeviceSnapshot::default(),
        };
        self.ask_device_mapper(devices, move |devices| snapshot.with_device_mapper(devices, group.as_deref())).await
    }

    /// Compares a new snapshot of the devices with the one at the time of the cached report.
    pub(super) fn compare_devices(&self, snapshot: DeviceSnapshot) -> Freshness {
        let mut cache = self.cache.write();
        let freshness = snapshot.compare(&cache.devices, cache.report.as_deref());
        if freshness != Freshness::Outdated {
            cache.devices = snapshot;
        }
        freshness
    }

    /// Returns whether a thin pool ignores discards, as far as its device has reported it.
    pub(super) fn ignores_discards(&self, pool: &str) -> bool {
        self.cache.read().devices.ignores_discards(pool)
    }

    /// Returns the kernel's status of a volume's device; `None` when it has none.
    pub(super) async fn device_status<D: Devices>(
        &self,
        devices: &Arc<D>,
        group: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
    ) -> io::Result<Option<DeviceStatus>> {
        let (group, volume) = (Arc::clone(group), volume.clone());
        self.ask_device_mapper(devices, move |devices| devices.status(&group, &volume)).await
    }

    /// Returns the devices of the machine's volumes by their names in device-mapper.
    pub(super) async fn mapped_devices<D: Devices>(&self, devices: &Arc<D>) -> io::Result<HashMap<String, Device>> {
        self.ask_device_mapper(devices, Devices::mapped).await
    }

    /// Returns whether a disk has failed under a move of extents of the group.
    pub(super) async fn is_move_failing<D: Devices>(&self, devices: &Arc<D>) -> io::Result<bool> {
        let vg = self.name.clone();
        self.ask_device_mapper(devices, move |devices| devices.is_move_failing(&vg)).await
    }

    /// Returns the bytes that these thin volumes use in their pools, by name, without those that have no device.
    pub(super) async fn thin_usage<D: Devices>(
        &self,
        devices: &Arc<D>,
        group: Arc<VolumeGroup>,
        volumes: Vec<LogicalVolume>,
    ) -> io::Result<HashMap<Box<str>, u64>> {
        self.ask_device_mapper(devices, move |devices| {
            let mut usage = HashMap::new();
            for volume in volumes {
                let sectors = devices.status(&group, &volume)?.and_then(|status| status.mapped_sectors);
                usage.extend(sectors.map(|sectors| (volume.name, sectors.saturating_mul(SECTOR))));
            }
            Ok(usage)
        })
        .await
    }

    /// Queries device-mapper in a separate thread, one query at a time, with a timeout.
    async fn ask_device_mapper<D: Devices, T: Send + 'static>(
        &self,
        devices: &Arc<D>,
        question: impl FnOnce(&D) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let answer = async {
            let lock = Arc::clone(&self.device_mapper_lock).lock_owned().await;
            let devices = Arc::clone(devices);
            let asking = tokio::task::spawn_blocking(move || {
                let answer = question(&devices);
                drop(lock);
                answer
            });
            asking.await.map_err(io::Error::other)?
        };
        timeout(READ_TIMEOUT, answer).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
