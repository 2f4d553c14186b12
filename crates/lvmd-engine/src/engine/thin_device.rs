//! Thin devices that a killed LVM left in a pool without a volume: they block a new snapshot, or LVM gives them to a
//! new volume.

use std::slice;

use lvm::{Changed, FullName, Host, LogicalVolume, LvName, Lvm, NewSnapshot, NewVolume, Tag, TagChanges};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::active_part::deactivate_blocking_part;
use super::state::LockedGroup;
use super::unfinished::finish_creation;
use crate::error::Error;

/// A logical volume for LVM to create.
#[derive(Clone, Copy)]
pub(super) enum NewLv<'a> {
    /// A volume, in a thin pool or not.
    Volume(&'a NewVolume<'a>),
    /// A snapshot, of so many bytes if it is to be larger than its source.
    Snapshot(&'a NewSnapshot<'a>, Option<u64>),
}

impl NewLv<'_> {
    async fn create<R: Host>(self, lvm: &Lvm<R>, making: &Tag) -> Changed {
        match self {
            Self::Volume(volume) => lvm.create(volume, making).await,
            Self::Snapshot(snapshot, larger) => lvm.snapshot(snapshot, larger, making).await,
        }
    }
}

/// Runs a creation in a thin pool or, without one, in the group itself, and runs it once more if it failed only because
/// of what a killed LVM has left and lvmd has removed since.
pub(super) async fn create_with_retry<R: Host>(
    group: &mut LockedGroup<R>,
    pool: Option<&LvName>,
    name: &LvName,
    making: &Tag,
    new: NewLv<'_>,
) -> Result<LogicalVolume, Error> {
    let changed = new.create(group.lvm(), making).await;
    let mut created = finish_creation(group, name, making, changed).await;
    let is_cleared = match &mut created {
        Err(error) => clear_obstacle(group, pool, error).await,
        Ok(_) => false,
    };
    if is_cleared {
        let changed = new.create(group.lvm(), making).await;
        created = finish_creation(group, name, making, changed).await;
    }
    created
}

/// Removes what a killed LVM has left in the way of a new volume. Returns whether another attempt makes sense.
pub(super) async fn clear_obstacle<R: Host>(
    group: &mut LockedGroup<R>,
    pool: Option<&LvName>,
    error: &mut Error,
) -> bool {
    let is_part_gone =
        if let Error::Lvm(error) = &*error { deactivate_blocking_part(group, error).await } else { false };
    is_part_gone || remove_blocking_thin_device(group, pool, error).await
}

/// Removes the thin device that blocked a new volume in a pool, if no volume has the device and no data is lost with
/// it. Returns whether another attempt makes sense; if not, the error of the creation contains the reason.
async fn remove_blocking_thin_device<R: Host>(
    group: &mut LockedGroup<R>,
    pool: Option<&LvName>,
    error: &mut Error,
) -> bool {
    let (Some(pool), Error::Lvm(lvm::Error::ThinDeviceExists { id, stderr, .. })) = (pool, error) else {
        return false;
    };
    let vg = &group.name;
    match group.lvm().remove_unused_thin_device(vg, pool, *id).await {
        Ok(()) => {
            tracing::warn!(%vg, %pool, id, "removed a thin device that a killed LVM left and no volume has");
            true
        }
        Err(kept) => {
            stderr.extend(["; lvmd leaves the device alone: ", &error_chain(&kept)]);
            false
        }
    }
}

/// Checks that a new volume in a pool is empty: LVM may have given it an existing thin device, with the data of a
/// snapshot or an older volume. Such a volume is removed if the device belongs to the pool's last transaction, which a
/// killed LVM did not complete; otherwise it is kept under another name, because it may be a volume of older metadata.
pub(super) async fn check_thin_volume_is_empty<R: Host>(
    group: &mut LockedGroup<R>,
    pool: &LvName,
    name: &LvName,
    volume: LogicalVolume,
) -> Result<LogicalVolume, Error> {
    let known = group.try_cached()?;
    // In a pool that does not zero, LVM writes the first block of a new volume, and other blocks have old contents
    // anyway.
    if !volume.attr.zeroes_new_blocks() {
        return Ok(volume);
    }
    let status = group.device_status(&group.shared().devices(), &known, &volume).await.ok().flatten();
    if status.and_then(|status| status.mapped_sectors).is_none_or(|mapped| mapped == 0) {
        return Ok(volume);
    }
    let vg = &known.name;
    let kept = match group.lvm().has_thin_device_of_last_transaction(vg, pool, name).await {
        Ok(true) => {
            let removed = group.lvm().remove_if(vg, name, &volume.uuid, None).await;
            group.store_outcome(removed)?;
            None
        }
        proof => {
            tracing::error!(
                %vg, %pool, ?proof,
                "LVM made a volume of a thin device with data in it, which may be an older volume"
            );
            let kept = tags::found_name(&volume)?;
            let no_tags = TagChanges::default();
            let renamed = group.lvm().rename_with_tags(vg, name, &volume.uuid, no_tags, &kept).await;
            group.store_outcome(renamed)?;
            let managed = tags::MANAGED.parse()?;
            let untagged = group.lvm().change_tags(vg, &kept, &[], slice::from_ref(&managed)).await;
            group.store_outcome(untagged)?;
            Some(FullName::new(vg, &kept))
        }
    };
    Err(Error::NotEmpty { pool: FullName::new(vg, pool), kept })
}
