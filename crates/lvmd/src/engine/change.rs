//! Creating and growing volumes.

use std::borrow::Cow;
use std::sync::Arc;

use lvm::{Host, Layout, LogicalVolume, LvName, NewVolume, Tag, VolumeGroup};

use super::group::Group;
use super::locate::Place;
use super::making::Vacancy;
use super::{Engine, missing, troubles};
use crate::device_class::{DeviceClass, PoolRefusal, Room};
use crate::error::Error;
use crate::marks;

/// A volume that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// Its name.
    pub name: LvName,
    /// The device class; empty for the default class.
    pub device_class: String,
    /// The option class; empty for the settings of the device class.
    pub option_class: String,
    /// Size in bytes, a multiple of 512; it is rounded up to whole extents.
    pub bytes: u64,
    /// Tags to put on it.
    pub tags: Vec<Tag>,
}

impl<R: Host> Engine<R> {
    /// Creates a volume. That it exists already and is large enough is success: the answer to an earlier request was lost.
    pub async fn create(&self, wanted: CreateVolume) -> Result<LogicalVolume, Error> {
        let class = self.class(&wanted.device_class)?;
        let options = match wanted.option_class.as_str() {
            "" => None,
            name => match self.classes().options(name) {
                Some(options) => Some(Arc::clone(options)),
                None => return Err(Error::UnknownOptionClass(name.to_owned())),
            },
        };
        let group = self.group(&class.volume_group)?;
        self.check_not_made_elsewhere(&group, &wanted.name)?;
        self.change(group, async move |engine, group| {
            engine.create_in_turn(&group, &class, &wanted, options.as_deref()).await
        })
        .await
    }

    async fn create_in_turn(
        &self,
        group: &Group,
        class: &DeviceClass,
        wanted: &CreateVolume,
        options: Option<&[String]>,
    ) -> Result<LogicalVolume, Error> {
        // An option class takes the place of all that the device class says.
        let (striping, options, layout) = match options {
            Some(options) => (None, options, Cow::Owned(Layout::parse(options, None))),
            None => (class.striping.as_ref(), class.lvcreate_options.as_slice(), Cow::Borrowed(&class.layout)),
        };
        let size = |known: &VolumeGroup| rounded(known, wanted.bytes, layout.step());
        let fits = |known: &VolumeGroup, existing: &LogicalVolume| difference(class, existing, size(known));
        let known = match self.vacancy(group, |volume| class.owns(volume), &wanted.name, fits).await? {
            Vacancy::Taken(existing) => return Ok(*existing),
            Vacancy::Free(known) => known,
        };
        check_complete(&known)?;
        check_pool(class, &known)?;
        check_pool_takes_more(class, &known)?;
        let room = class.room(&layout, &known).map_err(|pool| missing(pool, &known))?;
        let Some(bytes) = size(&known).filter(|size| room.fits(&layout, *size)) else {
            return Err(Error::NoSpace { free: room.free, requested: wanted.bytes });
        };
        let making = self.inner.maker.mark()?;
        let volume = NewVolume {
            vg: &group.name,
            pool: class.thin_pool.as_ref().map(|pool| &pool.name),
            name: &wanted.name,
            bytes,
            tags: &marks::begin(&wanted.tags, &making, None, class.wipe.filter(|_| class.thin_pool.is_none()))?,
            striping,
            options,
        };
        let mut made = self.made(group, &wanted.name, self.inner.lvm.create(&volume, &making).await).await;
        if self.removes_obstacle(group, volume.pool, &mut made).await {
            made = self.made(group, &wanted.name, self.inner.lvm.create(&volume, &making).await).await;
        }
        match volume.pool {
            Some(pool) => self.check_empty(group, pool, &wanted.name, made?).await,
            None => made,
        }
    }

    /// Makes a volume at least `bytes` large and returns it. It never gets smaller: what is large enough stays as it is, and
    /// gets a device if it has none.
    pub async fn resize(&self, class: &str, name: LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let sought = name.clone();
        self.where_it_is(class, &sought, async move |engine: Self, group: Arc<Group>, place: Place| {
            engine.resize_in_turn(&group, &place, &name, bytes).await
        })
        .await
    }

    async fn resize_in_turn(
        &self,
        group: &Group,
        place: &Place,
        name: &LvName,
        bytes: u64,
    ) -> Result<LogicalVolume, Error> {
        let vg = &group.name;
        let known = self.current(group).await?;
        let (volume, class) = self.find_in(place, &known, name)?;
        let not_allowed = |why: &str| Error::NotAllowed { vg: vg.clone(), name: name.clone(), why: why.to_owned() };
        if marks::is_half_made(volume) {
            return Err(not_allowed("is half made; create it again"));
        }
        if marks::is_wiping(volume) {
            return Err(not_allowed("is being wiped; remove it again"));
        }
        let current = volume.visible_size();
        if bytes <= current {
            return self.usable(group, volume).await;
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            return Err(not_allowed("is a copy-on-write snapshot and cannot be resized"));
        }
        check_complete(&known)?;
        // What more of it takes is told by how it lies there: it may have been made with other options than the class has now.
        let layout = volume.layout();
        let room = match class.as_deref() {
            Some(class) => {
                check_pool_takes_more(class, &known)?;
                class.room(&layout, &known).map_err(|pool| missing(pool, &known))?
            }
            None => Room::without_class(volume, &known),
        };
        // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
        let bytes = match rounded(&known, bytes, layout.step()) {
            Some(rounded) if room.fits(&layout, rounded.saturating_sub(current)) => rounded,
            _ => return Err(Error::NoSpace { free: room.free, requested: bytes.saturating_sub(current) }),
        };
        self.take(group, self.inner.lvm.resize(vg, name, bytes).await)?;
        find(group, name)
    }

    /// Does something to a group when it is its turn, to the end.
    pub(super) async fn change<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        group: Arc<Group>,
        change: impl FnOnce(Self, Arc<Group>) -> F,
    ) -> Result<T, Error> {
        let turn = group.turn().await;
        let doing = change(self.clone(), group);
        self.finish(async move {
            let done = doing.await;
            drop(turn);
            done
        })
        .await
    }
}

/// LVM changes nothing in a group without some of its physical volumes.
pub(super) fn check_complete(group: &VolumeGroup) -> Result<(), Error> {
    if group.missing_pvs > 0 { Err(troubles::missing_pvs(&group.name, group.missing_pvs)) } else { Ok(()) }
}

/// What comes out of a pool that does not zero blocks, or goes back into it, may be seen by others.
pub(super) fn check_pool(class: &DeviceClass, group: &VolumeGroup) -> Result<(), Error> {
    match class.leaking_pool(group) {
        Some(pool) => Err(Error::LeakingPool { vg: group.name.clone(), pool: pool.name.clone() }),
        None => Ok(()),
    }
}

/// LVM makes nothing in a pool that is full or broken.
pub(super) fn check_pool_takes_more(class: &DeviceClass, group: &VolumeGroup) -> Result<(), Error> {
    let Some((pool, refusal)) = class.full_pool(group) else { return Ok(()) };
    let (vg, pool) = (group.name.clone(), pool.name.clone());
    Err(match refusal {
        PoolRefusal::Full(why) => Error::PoolFull { vg, pool, why },
        PoolRefusal::Broken(why) => Error::PoolBroken { vg, pool, why },
    })
}

/// The volume that was just made.
pub(super) fn find(group: &Group, name: &LvName) -> Result<LogicalVolume, Error> {
    let vanished = || Error::Vanished { vg: group.name.clone(), name: name.clone() };
    group.known()?.volume(name.as_str()).cloned().ok_or_else(vanished)
}

/// The size that LVM makes of `bytes`: whole extents, the same number on every stripe.
pub(super) fn rounded(group: &VolumeGroup, bytes: u64, stripes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(group.extent_size.checked_mul(stripes)?)
}

/// Why an existing volume cannot be the wanted one of this size.
fn difference(class: &DeviceClass, existing: &LogicalVolume, wanted: Option<u64>) -> Option<String> {
    if !class.owns(existing) {
        return Some(elsewhere(class));
    }
    if marks::is_thin_snapshot(existing) {
        return Some("is a snapshot".to_owned());
    }
    match wanted {
        Some(wanted) if existing.visible_size() >= wanted => None,
        _ => Some(format!("has only {} bytes", existing.visible_size())),
    }
}

/// The volume, if it is one that the class may touch. A volume of this name in another pool, or in none, may be somebody
/// else's: nobody may conclude that it is gone.
pub(super) fn existing<'a>(
    class: &DeviceClass,
    group: &'a VolumeGroup,
    name: &LvName,
) -> Result<&'a LogicalVolume, Error> {
    let not_found = || Error::VolumeNotFound { vg: group.name.clone(), name: name.clone() };
    let not_allowed = |why| Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why };
    let volume = group.volume(name.as_str()).ok_or_else(not_found)?;
    // Volumes that hold other volumes are the administrator's: removing a pool removes everything in it.
    if volume.attr.holds_volumes() {
        return Err(not_allowed("holds other volumes and is not touched".to_owned()));
    }
    if !class.owns(volume) {
        return Err(Error::Elsewhere { vg: group.name.clone(), name: name.clone(), why: elsewhere(class) });
    }
    Ok(volume)
}

fn elsewhere(class: &DeviceClass) -> String {
    match &class.thin_pool {
        Some(pool) => format!("is not in thin pool {}, where device class {} keeps its volumes", pool.name, class.name),
        None => format!("is in a thin pool, where device class {} keeps no volumes", class.name),
    }
}
