//! Creates thin snapshots. A snapshot that is larger than its source is how a volume is restored or cloned.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, NewSnapshot, Tag, VolumeGroup};

use super::group::Group;
use super::locate::Scope;
use super::preconditions::{check_creates_volumes, check_no_missing_pvs, round_up_to_extents, space_beside};
use super::refusals::CreationOptions;
use super::state::Engine;
use super::unfinished::NameState;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

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
    /// True if it can be written to.
    pub writable: bool,
    /// Tags to put on it.
    pub tags: Vec<Tag>,
}

impl<R: Host> Engine<R> {
    /// Creates a snapshot. Returns an existing one if it is the wanted one: the answer to an earlier request was lost.
    pub async fn snapshot(&self, wanted: CreateSnapshot) -> Result<LogicalVolume, Error> {
        let (class, source) = (wanted.device_class.clone(), wanted.source.clone());
        self.change_volume(&class, &source, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            engine.snapshot_in_group(&group, &scope, &wanted).await
        })
        .await
    }

    async fn snapshot_in_group(
        &self,
        group: &Group,
        scope: &Scope,
        wanted: &CreateSnapshot,
    ) -> Result<LogicalVolume, Error> {
        let pool = self.pool_of_snapshot(group, scope, &wanted.source).await?;
        let is_in_pool =
            |volume: &LogicalVolume| volume.attr.is_thin() && volume.pool.as_deref() == Some(pool.as_str());
        let mismatch = |known: &VolumeGroup, existing: &LogicalVolume| {
            if is_in_pool(existing) {
                find_mismatch(known, existing, wanted)
            } else {
                Some("is in another pool".to_owned())
            }
        };
        let known = match self.prepare_name(group, is_in_pool, &wanted.name, mismatch).await? {
            NameState::Exists(existing) => return Ok(*existing),
            NameState::Free(known) => known,
        };
        let (source, class) = self.find_source(scope, &known, &wanted.source)?;
        let bytes = check_space(source, class.as_deref(), &known, wanted.bytes)?;
        let making = self.inner.instance.new_making_tag()?;
        let snapshot = NewSnapshot {
            vg: &group.name,
            source: &wanted.source,
            name: &wanted.name,
            tags: &tags::of_new_volume(&wanted.tags, &making, Some(&wanted.source), None)?,
            read_only: !wanted.writable,
        };
        let larger = Some(bytes).filter(|bytes| *bytes > source.size);
        let create = || self.inner.lvm.snapshot(&snapshot, larger, &making);
        let created = self.create_with_retry(group, Some(&pool), &wanted.name, &making, create).await;
        match class.and_then(|class| self.creation_of_proof(group, &CreationOptions::of_class(&class.name))) {
            Some(creation) => self.learn_from_creation(group, &creation, created).await,
            None => created,
        }
    }

    /// Returns the thin pool of a snapshot. LVM puts it into the pool of its source, whatever the class says.
    async fn pool_of_snapshot(&self, group: &Group, scope: &Scope, source: &LvName) -> Result<LvName, Error> {
        if let Scope::Class(class) = scope {
            let pool = class.thin_pool.as_ref().map(|pool| pool.name.clone());
            return pool.ok_or_else(|| Error::ThickClass(class.name.clone()));
        }
        let known = self.current(group).await?;
        let (volume, _) = self.find_in_scope(scope, &known, source)?;
        let not_thin = || Error::ThickSource(FullName::new(&group.name, source));
        Ok(volume.pool.as_deref().filter(|_| volume.attr.is_thin()).ok_or_else(not_thin)?.parse()?)
    }

    /// Returns the source of a snapshot, and the class whose volumes lie where it lies.
    fn find_source<'a>(
        &self,
        scope: &Scope,
        group: &'a VolumeGroup,
        name: &LvName,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        let not_found = || Error::VolumeNotFound(FullName::new(&group.name, name));
        if !group.volume(name.as_str()).ok_or_else(not_found)?.attr.is_thin() {
            return Err(Error::ThickSource(FullName::new(&group.name, name)));
        }
        let (source, class) = self.find_in_scope(scope, group, name)?;
        if tags::is_unfinished(source) {
            let why = "is unfinished and has nothing to take a snapshot of".to_owned();
            return Err(Error::NotAllowed(FullName::new(&group.name, name), why));
        }
        Ok((source, class))
    }
}

/// Returns the size in bytes of a snapshot after rounding; `wanted` is 0 for that of the source. Fails if there is no
/// room for it.
fn check_space(
    source: &LogicalVolume,
    class: Option<&DeviceClass>,
    group: &VolumeGroup,
    wanted: u64,
) -> Result<u64, Error> {
    let bytes = match wanted {
        0 => Some(source.size),
        _ if wanted < source.size => {
            return Err(Error::SmallerThanSource { requested: wanted, source_size: source.size });
        }
        _ => round_up_to_extents(group, wanted, 1),
    };
    check_no_missing_pvs(group)?;
    if let Some(class) = class {
        check_creates_volumes(class, group)?;
    }
    let free = space_beside(source, &source.layout(), class, group)?.bytes;
    let no_space = Error::NoSpace { free, requested: wanted.max(source.size) };
    bytes.filter(|bytes| *bytes <= free).ok_or(no_space)
}

/// Says why an existing volume is not the wanted snapshot.
fn find_mismatch(group: &VolumeGroup, existing: &LogicalVolume, wanted: &CreateSnapshot) -> Option<String> {
    let writable = existing.attr.is_writable();
    if !tags::is_snapshot_of(existing, &wanted.source) {
        Some(format!("is no snapshot of {}", wanted.source))
    } else if writable != wanted.writable {
        Some(if writable { "is writable" } else { "is read-only" }.to_owned())
    } else if round_up_to_extents(group, wanted.bytes, 1).is_none_or(|bytes| bytes > existing.size) {
        Some(format!("has only {} bytes", existing.size))
    } else {
        None
    }
}
