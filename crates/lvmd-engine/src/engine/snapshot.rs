//! Creates thin snapshots. A snapshot that is larger than its source is how a volume is restored or cloned.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, NewSnapshot, Tag, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses, tags};

use super::creation::Creation;
use super::preconditions::{check_creates_volumes, check_no_missing_pvs, round_up_to_extents, space_next_to};
use super::proof::learn_from_creation;
use super::refusals::CreationOptions;
use super::scope::Scope;
use super::state::LockedGroup;
use super::thin_device::{NewLv, create_with_retry};
use super::unfinished::{NameState, prepare_name};
use crate::error::Error;

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
    /// Tags to add to it.
    pub tags: Vec<Tag>,
}

/// The creation of a snapshot where its source was found.
pub(super) struct Snapshot {
    pub(super) scope: Scope,
    pub(super) wanted: CreateSnapshot,
}

impl Snapshot {
    /// Creates the snapshot. Returns an existing one that is the wanted one.
    pub(super) async fn run<R: Host>(&self, group: &mut LockedGroup<R>) -> Result<LogicalVolume, Error> {
        let Self { wanted, .. } = self;
        let pool = self.pool(group).await?;
        let known = match self.prepare(group, &pool).await? {
            NameState::Exists(existing) => return Ok(*existing),
            NameState::Free(known) => known,
        };
        let classes = group.shared().classes();
        let (source, class) = self.find_source(&classes, &known)?;
        let bytes = check_space(source, class.as_deref(), &known, wanted.bytes, 0)?;
        let making = group.shared().instance.new_making_tag()?;
        let snapshot = NewSnapshot {
            vg: &known.name,
            source: &wanted.source,
            name: &wanted.name,
            tags: &tags::of_new_volume(&wanted.tags, &making, Some(&wanted.source), None)?,
            read_only: !wanted.writable,
        };
        let larger = Some(bytes).filter(|bytes| *bytes > source.size);
        let new = NewLv::Snapshot(&snapshot, larger);
        let created = create_with_retry(group, Some(&pool), &wanted.name, &making, new).await;
        let options = class.map(|class| CreationOptions::of_class(&class.name));
        let classes = group.shared().classes();
        match options.and_then(|options| Creation::of_probe(&classes, &known.name, &options)) {
            Some(creation) => learn_from_creation(group, &creation, created).await,
            None => created,
        }
    }

    /// Makes the name of the snapshot in this pool free, or returns the existing one if it is the wanted one.
    pub(super) async fn prepare<R: Host>(&self, group: &mut LockedGroup<R>, pool: &LvName) -> Result<NameState, Error> {
        let is_in_pool =
            |volume: &LogicalVolume| volume.attr.is_thin() && volume.pool.as_deref() == Some(pool.as_str());
        let mismatch = |known: &VolumeGroup, existing: &LogicalVolume| {
            if is_in_pool(existing) {
                find_mismatch(known, existing, &self.wanted)
            } else {
                Some("is in another pool".to_owned())
            }
        };
        prepare_name(group, is_in_pool, &self.wanted.name, mismatch).await
    }

    /// Returns the bytes that the snapshot and those before it take together in their pool. Fails if there is no space
    /// for them.
    pub(super) fn check_space(&self, classes: &DeviceClasses, known: &VolumeGroup, before: u64) -> Result<u64, Error> {
        let (source, class) = self.find_source(classes, known)?;
        check_space(source, class.as_deref(), known, self.wanted.bytes, before)
            .map(|bytes| bytes.saturating_add(before))
    }

    /// Returns the thin pool of the snapshot. LVM creates a snapshot in the pool of its source, whichever pool the
    /// class has.
    pub(super) async fn pool<R: Host>(&self, group: &mut LockedGroup<R>) -> Result<LvName, Error> {
        if let Scope::Class(class) = &self.scope {
            let pool = class.thin_pool.as_ref().map(|pool| pool.name.clone());
            return pool.ok_or_else(|| Error::ThickClass(class.name.clone()));
        }
        let source = &self.wanted.source;
        let known = group.current().await?;
        let (volume, _) = self.scope.find(&group.shared().classes(), &known, source)?;
        let not_thin = || Error::ThickSource(FullName::new(&known.name, source));
        Ok(volume.pool.as_deref().filter(|_| volume.attr.is_thin()).ok_or_else(not_thin)?.parse()?)
    }

    /// Returns the source of the snapshot, and the class whose volumes lie where it lies.
    fn find_source<'a>(
        &self,
        classes: &DeviceClasses,
        group: &'a VolumeGroup,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        let name = &self.wanted.source;
        let not_found = || Error::VolumeNotFound(FullName::new(&group.name, name));
        if !group.volume(name.as_str()).ok_or_else(not_found)?.attr.is_thin() {
            return Err(Error::ThickSource(FullName::new(&group.name, name)));
        }
        let (source, class) = self.scope.find(classes, group, name)?;
        if tags::is_unfinished(source) {
            let why = "is unfinished and has nothing to take a snapshot of".to_owned();
            return Err(Error::NotAllowed(FullName::new(&group.name, name), why));
        }
        Ok((source, class))
    }
}

/// Returns the size in bytes of a snapshot after rounding; `wanted` is 0 for that of the source. Fails if there is no
/// space for it in addition to `before` bytes of others.
fn check_space(
    source: &LogicalVolume,
    class: Option<&DeviceClass>,
    group: &VolumeGroup,
    wanted: u64,
    before: u64,
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
    let free = space_next_to(source, &source.layout(), class, group)?.bytes;
    let no_space = Error::NoSpace { free, requested: wanted.max(source.size).saturating_add(before) };
    bytes.filter(|bytes| bytes.checked_add(before).is_some_and(|all| all <= free)).ok_or(no_space)
}

/// Returns the reason why an existing volume is not the wanted snapshot.
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
