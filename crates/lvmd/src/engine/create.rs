//! Creates volumes. `lvcreate`'s arguments are put together in `lvm`'s `LvmCommand::create`.

use std::sync::Arc;

use lvm::{Host, Layout, LogicalVolume, VolumeGroup};

use super::creation::{CreateVolume, Creation};
use super::group::Group;
use super::locate::not_in_place;
use super::preconditions::{check_creates_volumes, check_pool_accepts_volumes, round_up_to_extents, thin_pool_missing};
use super::state::Engine;
use super::unfinished::NameState;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Creates a volume. Returns an existing volume of this name if it is large enough: the answer to an earlier
    /// request was lost.
    pub async fn create(&self, wanted: CreateVolume) -> Result<LogicalVolume, Error> {
        let class = self.class(&wanted.device_class)?;
        let option_class = match wanted.option_class.as_str() {
            "" => None,
            name => match self.classes().option_class(name) {
                Some(class) => Some(Arc::clone(class)),
                None => return Err(Error::UnknownOptionClass(name.to_owned())),
            },
        };
        let group = self.group(&class.volume_group)?;
        self.check_not_created_elsewhere(&group, &wanted.name)?;
        let place = group.creations.push(Creation { wanted, class, option_class });
        self.with_lock(group, async move |engine, group| match place.leave() {
            Some(volume) => Ok(volume),
            None => engine.create_in_group(&group, &place.change).await,
        })
        .await
    }

    async fn create_in_group(&self, group: &Group, creation: &Arc<Creation>) -> Result<LogicalVolume, Error> {
        let mut known = match self.prepare_creation(group, creation).await? {
            NameState::Exists(existing) => return Ok(*existing),
            NameState::Free(known) => known,
        };
        if let Some(batch) = self.plan_batch(group, creation, &known) {
            if let Some(created) = self.create_batch(group, batch).await {
                return Ok(created);
            }
            known = match self.prepare_creation(group, creation).await? {
                NameState::Exists(existing) => return Ok(*existing),
                NameState::Free(known) => known,
            };
        }
        let created = self.create_alone(group, creation, &known).await;
        self.learn_from_creation(group, creation, created).await
    }

    /// Makes the name of a new volume free, or returns the existing volume that is the wanted one.
    async fn prepare_creation(&self, group: &Group, creation: &Creation) -> Result<NameState, Error> {
        let Creation { wanted, class, .. } = creation;
        let step = creation.layout().step();
        let size = |known: &VolumeGroup| round_up_to_extents(known, wanted.bytes, step);
        let mismatch = |known: &VolumeGroup, existing: &LogicalVolume| find_mismatch(class, existing, size(known));
        self.prepare_name(group, |volume| class.owns(volume), &wanted.name, mismatch).await
    }

    async fn create_alone(
        &self,
        group: &Group,
        creation: &Creation,
        known: &VolumeGroup,
    ) -> Result<LogicalVolume, Error> {
        let Creation { wanted, class, .. } = creation;
        let making = self.inner.instance.new_making_tag()?;
        let bytes = check_space(class, creation.layout(), known, wanted.bytes)?;
        let wipe = class.wipe.filter(|_| class.thin_pool.is_none());
        let tags = tags::of_new_volume(&wanted.tags, &making, None, wipe)?;
        let volume = creation.new_volume(&group.name, &wanted.name, bytes, &tags, creation.options());
        let create = || self.inner.lvm.create(&volume, &making);
        let created = self.create_with_retry(group, volume.pool, &wanted.name, &making, create).await?;
        match volume.pool {
            Some(pool) => self.check_thin_volume_is_empty(group, pool, &wanted.name, created).await,
            None => Ok(created),
        }
    }
}

/// Returns the size in bytes after rounding. Fails if LVM cannot create a volume of that size in the class.
pub(super) fn check_space(class: &DeviceClass, layout: &Layout, group: &VolumeGroup, bytes: u64) -> Result<u64, Error> {
    check_creates_volumes(class, group)?;
    check_pool_accepts_volumes(class, group)?;
    let space = class.free_space(layout, group).map_err(|pool| thin_pool_missing(pool, group))?;
    let size = round_up_to_extents(group, bytes, layout.step()).filter(|size| space.fits(layout, *size));
    size.ok_or(Error::NoSpace { free: space.bytes, requested: bytes })
}

/// Says why an existing volume is not the wanted one, whose size after rounding is given in bytes.
fn find_mismatch(class: &DeviceClass, existing: &LogicalVolume, wanted: Option<u64>) -> Option<String> {
    if !class.owns(existing) {
        return Some(not_in_place(class));
    }
    if tags::is_thin_snapshot(existing) {
        return Some("is a snapshot".to_owned());
    }
    match wanted {
        Some(wanted) if existing.visible_size() >= wanted => None,
        _ => Some(format!("has only {} bytes", existing.visible_size())),
    }
}
