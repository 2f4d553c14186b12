//! What lvmd knows of one volume group, and how it makes sure that this is still so.
//!
//! Reads are answered from here without an LVM process. LVM counts the changes of a group's metadata and writes the count on
//! the physical volumes with each of them; as long as the count there is the one that is known here, nothing has changed,
//! whoever else may be at work. What is not in the metadata, which devices there are and how they are, comes from
//! device-mapper.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{Device, DeviceStatus, Devices, LogicalVolume, PhysicalVolume, Version, VgName, VolumeGroup};
use parking_lot::{RwLock, RwLockWriteGuard};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::headers::{self, Headers};
use super::wiping::Ledger;
use crate::error::Error;

/// Disks answer in milliseconds. One that takes longer is as good as unreadable.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// One volume group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: VgName,
    /// Held from the check of the free space to the end of the change. The only lock that is held across an await.
    turn: Arc<Mutex<()>>,
    headers: Headers,
    /// Held while somebody asks device-mapper, which answers also while a disk hangs.
    mapper: Arc<Mutex<()>>,
    known: RwLock<Known>,
    /// Somebody should look at LVM again.
    pub(crate) doubt: Notify,
    /// LVM was asked.
    pub(super) news: Notify,
    /// What was wiped.
    pub(super) ledger: Ledger,
}

#[derive(Debug)]
struct Known {
    /// `None` when LVM said that there is no such group.
    group: Option<Arc<VolumeGroup>>,
    /// What was in it before that.
    gone: Option<Arc<VolumeGroup>>,
    /// When LVM said so.
    since: Instant,
    /// Why nobody knows whether it is still so.
    stale: Option<String>,
    /// LVM did not fail, it did not end in time.
    is_slow: bool,
    /// How the devices looked before LVM was asked, or should look by what it said.
    looks: Looks,
    /// The disks of the group when it last had them: where what is missing is looked for. One that only failed to answer, or
    /// a group that only has another name, comes back without any device coming or going.
    disks: Option<Disks>,
}

/// The physical volumes of a group and its identity.
#[derive(Clone, Debug)]
struct Disks {
    vg_uuid: String,
    pvs: Vec<PhysicalVolume>,
}

impl Disks {
    /// Those of the group; a missing one where it was before.
    fn of(group: &VolumeGroup, before: Option<&Self>) -> Self {
        let last_seen = |pv: &PhysicalVolume| {
            let mut earlier = before.into_iter().flat_map(|before| &before.pvs);
            earlier.find(|earlier| pv.device.is_none() && earlier.uuid == pv.uuid).unwrap_or(pv).clone()
        };
        Self { vg_uuid: group.uuid.clone(), pvs: group.pvs.iter().map(last_seen).collect() }
    }
}

/// How the devices of a group look without LVM.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Looks {
    /// The newest metadata on any physical volume.
    newest: Option<Version>,
    /// Which physical volumes can be read, by identity.
    readable: BTreeMap<String, bool>,
    /// Where the volumes are, by their names in device-mapper.
    mapped: HashMap<String, Device>,
    /// What the kernel says of thin pools and RAIDs, by volume.
    conditions: BTreeMap<String, String>,
    /// How full the thin pools are, in percent: data and metadata.
    fills: BTreeMap<String, (f64, f64)>,
    /// All block devices, as long as one of the group is not there.
    population: Option<String>,
}

/// What a look at the devices says about what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is still so.
    Current,
    /// Something has changed.
    Outdated,
    /// The devices do not tell.
    Blind,
}

impl Group {
    /// A group of which LVM said this just now.
    pub(crate) fn new(name: VgName, group: Option<VolumeGroup>) -> Self {
        let known = Known {
            group: None,
            gone: None,
            since: Instant::now(),
            stale: None,
            is_slow: false,
            looks: Looks::default(),
            disks: None,
        };
        let known = RwLock::new(known);
        let new = Self {
            name,
            turn: Arc::default(),
            headers: Headers::default(),
            mapper: Arc::default(),
            known,
            doubt: Notify::new(),
            news: Notify::new(),
            ledger: Ledger::default(),
        };
        new.learn(group);
        new
    }

    /// The right to change the group.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// The same, unless somebody has it.
    pub(crate) fn free_turn(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.turn).try_lock_owned().ok()
    }

    /// What LVM last said; `None` when it said that there is no such group.
    pub(crate) fn get(&self) -> Option<Arc<VolumeGroup>> {
        self.known.read().group.clone()
    }

    /// What LVM last said. The error is that there is no such group.
    pub(crate) fn known(&self) -> Result<Arc<VolumeGroup>, Error> {
        self.get().ok_or_else(|| Error::VolumeGroupMissing(self.name.clone()))
    }

    /// Whether a volume of this name was in the group before it went.
    pub(crate) fn had(&self, name: &str) -> bool {
        let known = self.known.read();
        known.gone.as_ref().is_some_and(|gone| gone.volume(name).is_some())
    }

    /// Why nobody knows whether it is still so.
    pub(crate) fn staleness(&self) -> Option<String> {
        self.known.read().stale.clone()
    }

    /// Whether that is because LVM did not end in time.
    pub(crate) fn is_slow(&self) -> bool {
        self.known.read().is_slow
    }

    /// How long ago LVM said so.
    pub(crate) fn age(&self) -> Duration {
        self.known.read().since.elapsed()
    }

    /// Takes what LVM said in a report.
    pub(crate) fn learn(&self, group: Option<VolumeGroup>) {
        let mut known = self.write();
        if let Some(group) = &group {
            known.looks.expect(group);
            known.disks = Some(Disks::of(group, known.disks.as_ref()));
        }
        let before = std::mem::replace(&mut known.group, group.map(Arc::new));
        known.gone = if known.group.is_some() { None } else { before.or_else(|| known.gone.take()) };
        known.since = Instant::now();
        known.stale = None;
        known.is_slow = false;
        drop(known);
        self.news.notify_one();
    }

    /// Takes how the devices looked before that report: what is odd now and stays so is no news.
    pub(crate) fn accept(&self, looks: Looks) {
        self.write().looks = looks;
    }

    /// Notes that LVM could not be asked, and returns whether that is news.
    pub(crate) fn doubt(&self, why: &str, is_slow: bool) -> bool {
        let was_certain = {
            let mut known = self.write();
            known.is_slow = is_slow;
            known.stale.replace(why.to_owned()).is_none()
        };
        self.doubt.notify_one();
        was_certain
    }

    /// Takes over how full the thin pools are; returns whether that is news.
    pub(crate) fn fill(&self, fills: &BTreeMap<String, (f64, f64)>) -> bool {
        let mut known = self.write();
        let Some(group) = &mut known.group else { return false };
        let is_news = |group: &VolumeGroup, name: &String, fill: (f64, f64)| {
            let volume = group.volume(name);
            volume.is_some_and(|volume| volume.data_percent.zip(volume.metadata_percent) != Some(fill))
        };
        if !fills.iter().any(|(name, fill)| is_news(group, name, *fill)) {
            return false;
        }
        for volume in &mut Arc::make_mut(group).volumes {
            if let Some((data, metadata)) = fills.get(&*volume.name) {
                (volume.data_percent, volume.metadata_percent) = (Some(*data), Some(*metadata));
            }
        }
        true
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write()
    }

    /// Whether the metadata on the disks is the one that is known.
    pub(crate) async fn check<D: Devices>(&self, devices: &Arc<D>) -> Verdict {
        // Whether a disk that was missing is back LVM alone can tell.
        let is_certain = |group: &Arc<VolumeGroup>| group.missing_pvs == 0 && self.staleness().is_none();
        let Some(group) = self.get().filter(is_certain) else { return Verdict::Blind };
        let read = self.headers.versions(devices, &group.pvs).await;
        // LVM would hang as well, in the middle of a change. A report has a short deadline.
        let hangs =
            |(_, version): &headers::Read| matches!(version, Err(error) if error.kind() == io::ErrorKind::TimedOut);
        match newest(&group.uuid, &read) {
            _ if read.iter().any(hangs) => Verdict::Blind,
            None => Verdict::Blind,
            Some(newest) if is_of(&newest, &group) => Verdict::Current,
            Some(_) => Verdict::Outdated,
        }
    }

    /// How the devices look.
    pub(crate) async fn look<D: Devices>(&self, devices: &Arc<D>) -> io::Result<Looks> {
        let (group, disks) = {
            let known = self.known.read();
            (known.group.clone(), known.disks.clone())
        };
        let mut looks = Looks::default();
        if let Some(Disks { vg_uuid, pvs }) = disks {
            let read = self.headers.versions(devices, &pvs).await;
            looks.newest = newest(&vg_uuid, &read);
            looks.readable = read.into_iter().map(|(pv, version)| (pv, version.is_ok())).collect();
        }
        see(&self.mapper, devices, move |devices| looks.complete(devices, group.as_deref())).await
    }

    /// What these looks say about what is known. What was odd before LVM was last asked is no news.
    pub(crate) fn judge(&self, now: Looks) -> Verdict {
        let mut known = self.write();
        let group = known.group.clone();
        let current = group.as_ref().zip(now.newest.as_ref()).map(|(group, newest)| is_of(newest, group));
        let before = &known.looks;
        // Also on the disks of a group that is not there, which may have come back.
        let is_rewritten = (current == Some(false) || group.is_none()) && before.newest != now.newest;
        let has_moved = group.as_deref().is_some_and(|group| {
            group.volumes.iter().any(|volume| {
                let name = volume.mapper_name(&group.name);
                let device = now.mapped.get(&name);
                device != volume.device.as_ref() && device != before.mapped.get(&name)
            })
        });
        if is_rewritten
            || has_moved
            || differs(&before.readable, &now.readable)
            || differs(&before.conditions, &now.conditions)
            || before.population.is_some() && before.population != now.population
        {
            return Verdict::Outdated;
        }
        // LVM goes without a disk that answers again until somebody tells it to look.
        let is_doubtful =
            now.readable.values().all(|readable| *readable) && group.is_some_and(|group| group.missing_pvs > 0);
        known.looks = now;
        // What LVM was asked about already, and it did not help: an old disk with metadata of its own.
        if current == Some(true) && !is_doubtful { Verdict::Current } else { Verdict::Blind }
    }

    /// What the kernel says of a volume's device; `None` when it has none.
    pub(crate) async fn status<D: Devices>(
        &self,
        devices: &Arc<D>,
        group: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
    ) -> io::Result<Option<DeviceStatus>> {
        let (group, volume) = (Arc::clone(group), volume.clone());
        see(&self.mapper, devices, move |devices| devices.status(&group, &volume)).await
    }

    /// Where the devices of the group are now.
    pub(crate) async fn devices<D: Devices>(&self, devices: &Arc<D>) -> io::Result<HashMap<String, Device>> {
        see(&self.mapper, devices, Devices::mapped).await
    }
}

/// Asks device-mapper in a thread of its own, one question at a time.
async fn see<D: Devices, T: Send + 'static>(
    eyes: &Arc<Mutex<()>>,
    devices: &Arc<D>,
    look: impl FnOnce(&D) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let seen = async {
        let eyes = Arc::clone(eyes).lock_owned().await;
        let devices = Arc::clone(devices);
        let looking = tokio::task::spawn_blocking(move || {
            let seen = look(&devices);
            drop(eyes);
            seen
        });
        looking.await.map_err(io::Error::other)?
    };
    timeout(PATIENCE, seen).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn is_of(version: &Version, group: &VolumeGroup) -> bool {
    version.vg_uuid == group.uuid && version.seqno == group.seqno
}

/// Whether anything that is in both is not the same. What is new was made, and known, since.
fn differs<V: PartialEq>(before: &BTreeMap<String, V>, now: &BTreeMap<String, V>) -> bool {
    now.iter().any(|(key, value)| before.get(key).is_some_and(|before| before != value))
}

/// The newest metadata of the group, or else of another that took its place.
fn newest(vg_uuid: &str, read: &[headers::Read]) -> Option<Version> {
    let newest = read.iter().filter_map(|(_, version)| version.as_ref().ok()?.clone());
    newest.max_by_key(|version| (version.vg_uuid == vg_uuid, version.seqno))
}

impl Looks {
    /// Adds what device-mapper says.
    fn complete(mut self, devices: &impl Devices, group: Option<&VolumeGroup>) -> io::Result<Self> {
        let looks = &mut self;
        if let Some(group) = group {
            looks.mapped = devices.mapped()?;
            for volume in group.volumes.iter().filter(|volume| volume.attr.is_thin_pool() || volume.attr.is_raid()) {
                let (fill, condition) = match devices.status(group, volume) {
                    Ok(Some(DeviceStatus { fill, condition, .. })) => (fill, condition),
                    Ok(None) => (None, "inactive".to_owned()),
                    Err(error) => (None, error.to_string()),
                };
                looks.fills.extend(fill.map(|fill| (volume.name.to_string(), fill)));
                looks.conditions.insert(volume.name.to_string(), condition);
            }
        }
        if group.is_none_or(|group| group.missing_pvs > 0) || looks.readable.values().any(|readable| !readable) {
            looks.population = Some(devices.population()?);
        }
        Ok(self)
    }

    /// Sets what LVM just said, so that everything else is news.
    fn expect(&mut self, group: &VolumeGroup) {
        let is_there = |pv: &PhysicalVolume| (pv.uuid.clone(), pv.device.is_some());
        for (pv, is_there) in group.pvs.iter().map(is_there) {
            self.readable.entry(pv).or_insert(is_there);
        }
        let device_of = |volume: &LogicalVolume| Some((volume.mapper_name(&group.name), volume.device?));
        self.mapped = group.volumes.iter().filter_map(device_of).collect();
    }

    /// How full the thin pools are, in percent: data and metadata.
    pub(crate) fn fills(&self) -> &BTreeMap<String, (f64, f64)> {
        &self.fills
    }
}
