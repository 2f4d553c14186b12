//! Thin snapshots. A snapshot that is larger than its source is how a volume is restored or cloned.

use lvm::{Host, LogicalVolume, LvName, NewSnapshot, Permissions, Tag, VolumeGroup};

use super::group::Group;
use super::making::Vacancy;
use super::{Engine, available};
use crate::device_class::DeviceClass;
use crate::engine::change::{check_complete, check_pool, existing, rounded};
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
        let class = self.class(&wanted.device_class)?;
        if class.thin_pool.is_none() {
            return Err(Error::ThickClass(class.name.clone()));
        }
        let group = self.group(&class.volume_group)?;
        self.change(group, async move |engine, group| engine.snapshot_in_turn(&group, &class, &wanted).await).await
    }

    async fn snapshot_in_turn(
        &self,
        group: &Group,
        class: &DeviceClass,
        wanted: &CreateSnapshot,
    ) -> Result<LogicalVolume, Error> {
        let fits = |known: &VolumeGroup, existing: &LogicalVolume| difference(class, known, existing, wanted);
        let known = match self.vacancy(group, class, &wanted.name, fits).await? {
            Vacancy::Taken(existing) => return Ok(*existing),
            Vacancy::Free(known) => known,
        };
        let size = source_size(class, &known, &wanted.source)?;
        let bytes = match wanted.bytes {
            0 => Some(size),
            bytes if bytes < size => return Err(Error::SmallerThanSource { requested: bytes, source_size: size }),
            bytes => rounded(&known, bytes, 1),
        };
        check_complete(&known)?;
        check_pool(class, &known)?;
        let free = available(class, &known)?;
        let Some(bytes) = bytes.filter(|bytes| *bytes <= free) else {
            return Err(Error::NoSpace { free, requested: wanted.bytes.max(size) });
        };
        let making = self.inner.maker.mark()?;
        let snapshot = NewSnapshot {
            vg: &group.name,
            source: &wanted.source,
            name: &wanted.name,
            tags: &marks::begin(&wanted.tags, &making, Some(&wanted.source))?,
            read_only: !wanted.writable,
        };
        let changed = self.inner.lvm.snapshot(&snapshot, Some(bytes).filter(|bytes| *bytes > size), &making).await;
        self.made(group, &wanted.name, changed).await
    }
}

/// Size in bytes of a volume that can have snapshots in this class.
fn source_size(class: &DeviceClass, group: &VolumeGroup, name: &LvName) -> Result<u64, Error> {
    let not_found = || Error::VolumeNotFound { vg: group.name.clone(), name: name.clone() };
    if !group.volume(name.as_str()).ok_or_else(not_found)?.attr.is_thin() {
        return Err(Error::ThickSource { vg: group.name.clone(), name: name.clone() });
    }
    // LVM puts a snapshot into the pool of its source, whatever the class says.
    let source = existing(class, group, name)?;
    if marks::is_half_made(source) {
        let why = "is half made and has nothing to take a snapshot of".to_owned();
        return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
    }
    Ok(source.size)
}

/// Why an existing volume cannot be the wanted snapshot.
fn difference(
    class: &DeviceClass,
    group: &VolumeGroup,
    existing: &LogicalVolume,
    wanted: &CreateSnapshot,
) -> Option<String> {
    let writable = existing.attr.permissions() == Permissions::Writable;
    if !class.owns(existing) {
        Some("is in another pool".to_owned())
    } else if !marks::is_snapshot_of(existing, &wanted.source) {
        Some(format!("is no snapshot of {}", wanted.source))
    } else if writable != wanted.writable {
        Some(if writable { "is writable" } else { "is read-only" }.to_owned())
    } else if rounded(group, wanted.bytes, 1).is_none_or(|bytes| bytes > existing.size) {
        Some(format!("has only {} bytes", existing.size))
    } else {
        None
    }
}
