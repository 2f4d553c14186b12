//! Thin snapshots. A snapshot that is larger than its source is how a volume is restored or cloned.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, NewSnapshot, Permissions, Tag, VolumeGroup};

use super::group::Group;
use super::locate::Place;
use super::making::Vacancy;
use super::{Engine, available};
use crate::device_class::{DeviceClass, Room};
use crate::engine::change::{check_complete, check_pool, check_pool_takes_more, rounded};
use crate::error::Error;
use crate::marks;

/// A snapshot that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSnapshot {
    /// Its name.
    pub name: LvName,
    /// The volume whose present contents it is to have.
    pub source: LvName,
    /// The device class, which must be thin, of both; empty for the default class.
    pub device_class: String,
    /// Size in bytes; it is rounded up to whole extents. 0 for that of the source.
    pub bytes: u64,
    /// Whether it can be written to.
    pub writable: bool,
    /// Tags to put on it.
    pub tags: Vec<Tag>,
}

impl<R: Host> Engine<R> {
    /// Creates a snapshot. That it exists already is success: the answer to an earlier request was lost.
    pub async fn snapshot(&self, wanted: CreateSnapshot) -> Result<LogicalVolume, Error> {
        let (class, source) = (wanted.device_class.clone(), wanted.source.clone());
        self.where_it_is(&class, &source, async move |engine: Self, group: Arc<Group>, place: Place| {
            engine.snapshot_in_turn(&group, &place, &wanted).await
        })
        .await
    }

    async fn snapshot_in_turn(
        &self,
        group: &Group,
        place: &Place,
        wanted: &CreateSnapshot,
    ) -> Result<LogicalVolume, Error> {
        let pool = match place {
            Place::OfClass(class) => match &class.thin_pool {
                Some(pool) => pool.name.to_string(),
                None => return Err(Error::ThickClass(class.name.clone())),
            },
            // LVM puts a snapshot into the pool of its source, whatever the class says.
            Place::Anywhere(_) => {
                let known = self.current(group).await?;
                let (source, _) = self.find_in(place, &known, &wanted.source)?;
                let not_thin = || Error::ThickSource { vg: group.name.clone(), name: wanted.source.clone() };
                source.pool.as_deref().filter(|_| source.attr.is_thin()).ok_or_else(not_thin)?.to_owned()
            }
        };
        let is_here = |volume: &LogicalVolume| volume.attr.is_thin() && volume.pool.as_deref() == Some(&*pool);
        let fits = |known: &VolumeGroup, existing: &LogicalVolume| {
            if is_here(existing) { difference(known, existing, wanted) } else { Some("is in another pool".to_owned()) }
        };
        let known = match self.vacancy(group, is_here, &wanted.name, fits).await? {
            Vacancy::Taken(existing) => return Ok(*existing),
            Vacancy::Free(known) => known,
        };
        let (source, class) = self.find_source(place, &known, &wanted.source)?;
        let size = source.size;
        let bytes = match wanted.bytes {
            0 => Some(size),
            bytes if bytes < size => return Err(Error::SmallerThanSource { requested: bytes, source_size: size }),
            bytes => rounded(&known, bytes, 1),
        };
        check_complete(&known)?;
        let free = match class.as_deref() {
            Some(class) => {
                check_pool(class, &known)?;
                check_pool_takes_more(class, &known)?;
                available(class, &known)?
            }
            None => Room::without_class(source, &known).free,
        };
        let Some(bytes) = bytes.filter(|bytes| *bytes <= free) else {
            return Err(Error::NoSpace { free, requested: wanted.bytes.max(size) });
        };
        let making = self.inner.maker.mark()?;
        let snapshot = NewSnapshot {
            vg: &group.name,
            source: &wanted.source,
            name: &wanted.name,
            tags: &marks::begin(&wanted.tags, &making, Some(&wanted.source), None)?,
            read_only: !wanted.writable,
        };
        let larger = Some(bytes).filter(|bytes| *bytes > size);
        let mut made = self.made(group, &wanted.name, self.inner.lvm.snapshot(&snapshot, larger, &making).await).await;
        if self.removes_obstacle(group, Some(&pool.parse()?), &mut made).await {
            made = self.made(group, &wanted.name, self.inner.lvm.snapshot(&snapshot, larger, &making).await).await;
        }
        made
    }

    /// A volume that can have snapshots, and the class that has its volumes there.
    fn find_source<'a>(
        &self,
        place: &Place,
        group: &'a VolumeGroup,
        name: &LvName,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        let not_found = || Error::VolumeNotFound { vg: group.name.clone(), name: name.clone() };
        if !group.volume(name.as_str()).ok_or_else(not_found)?.attr.is_thin() {
            return Err(Error::ThickSource { vg: group.name.clone(), name: name.clone() });
        }
        let (source, class) = self.find_in(place, group, name)?;
        if marks::is_half_made(source) {
            let why = "is half made and has nothing to take a snapshot of".to_owned();
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        Ok((source, class))
    }
}

/// Why an existing volume cannot be the wanted snapshot.
fn difference(group: &VolumeGroup, existing: &LogicalVolume, wanted: &CreateSnapshot) -> Option<String> {
    let writable = existing.attr.permissions() == Permissions::Writable;
    if !marks::is_snapshot_of(existing, &wanted.source) {
        Some(format!("is no snapshot of {}", wanted.source))
    } else if writable != wanted.writable {
        Some(if writable { "is writable" } else { "is read-only" }.to_owned())
    } else if rounded(group, wanted.bytes, 1).is_none_or(|bytes| bytes > existing.size) {
        Some(format!("has only {} bytes", existing.size))
    } else {
        None
    }
}
