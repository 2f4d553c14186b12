//! Creates volumes. `lvcreate`'s arguments are put together in `lvm`'s `LvmCommand::create`.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, VolumeGroup};
use lvmd_config::{DeviceClass, tags};

use super::create_batch::Batch;
use super::creation::Creation;
use super::preconditions::round_up_to_extents;
use super::proof::learn_from_creation;
use super::scope::not_in_place;
use super::state::LockedGroup;
use super::thin_device::{NewLv, check_thin_volume_is_empty, create_with_retry};
use super::unfinished::{NameState, prepare_name};
use crate::error::Error;

/// Creates a volume, together with others that wait for the same lock if possible. Returns an existing volume that is
/// the wanted one.
pub(super) async fn create_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    creation: &Arc<Creation>,
) -> Result<LogicalVolume, Error> {
    let mut known = match prepare_creation(group, creation).await? {
        NameState::Exists(existing) => return Ok(*existing),
        NameState::Free(known) => known,
    };
    if let Some(batch) = Batch::plan(group, creation, &known) {
        if let Some(created) = batch.create(group).await {
            return Ok(created);
        }
        known = match prepare_creation(group, creation).await? {
            NameState::Exists(existing) => return Ok(*existing),
            NameState::Free(known) => known,
        };
    }
    let created = create_alone(group, creation, &known).await;
    learn_from_creation(group, creation, created).await
}

/// Makes the name of a new volume free, or returns the existing volume that is the wanted one.
async fn prepare_creation<R: Host>(group: &mut LockedGroup<R>, creation: &Creation) -> Result<NameState, Error> {
    let Creation { wanted, class, .. } = creation;
    let step = creation.layout().step();
    let size = |known: &VolumeGroup| round_up_to_extents(known, wanted.bytes, step);
    let mismatch = |known: &VolumeGroup, existing: &LogicalVolume| find_mismatch(class, existing, size(known));
    prepare_name(group, |volume| class.owns(volume), &wanted.name, mismatch).await
}

async fn create_alone<R: Host>(
    group: &mut LockedGroup<R>,
    creation: &Creation,
    known: &VolumeGroup,
) -> Result<LogicalVolume, Error> {
    let Creation { wanted, class, .. } = creation;
    let making = group.shared().instance.new_making_tag()?;
    let bytes = creation.check_space(known, wanted.bytes)?;
    let wipe = class.wipe.filter(|_| class.thin_pool.is_none());
    let tags = tags::of_new_volume(&wanted.tags, &making, None, wipe)?;
    let volume = creation.new_volume(&known.name, &wanted.name, bytes, &tags, creation.options());
    let created = create_with_retry(group, volume.pool, &wanted.name, &making, NewLv::Volume(&volume)).await?;
    match volume.pool {
        Some(pool) => check_thin_volume_is_empty(group, pool, &wanted.name, created).await,
        None => Ok(created),
    }
}

/// Returns the reason why an existing volume differs from the requested one. `wanted` is the requested size after
/// rounding, in bytes.
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
