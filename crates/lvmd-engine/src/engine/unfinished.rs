//! Unfinished volumes: their creation takes several LVM commands, and carries the LVM tag `topolvm.io/making=...` from
//! the first to the last. A crash or a failure in between leaves a volume with the tag, which is removed. See [`tags`].

use std::sync::Arc;

use lvm::{Changed, FullName, Host, LogicalVolume, LvName, Tag, VolumeGroup};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::remove::rename_for_wiping;
use super::state::LockedGroup;
use crate::error::Error;

/// The state of a name that a new volume is to get.
pub(super) enum NameState {
    /// No volume of the group has the name.
    Free(Arc<VolumeGroup>),
    /// The wanted volume exists already.
    Exists(Box<LogicalVolume>),
}

/// Makes the name of a new volume free, or returns the existing volume if `mismatch` finds no difference from the
/// wanted one. Removes an unfinished volume of this name, which may hold another tenant's data, and renames one that is
/// being wiped, each only in the part of the group that `is_in_place` selects.
pub(super) async fn prepare_name<R: Host>(
    group: &mut LockedGroup<R>,
    is_in_place: impl Fn(&LogicalVolume) -> bool,
    name: &LvName,
    mismatch: impl Fn(&VolumeGroup, &LogicalVolume) -> Option<String>,
) -> Result<NameState, Error> {
    let mut known = group.current().await?;
    let being_made = || Error::BeingMade(FullName::new(&group.name, name));
    let Some(existing) = known.volume(name.as_str()) else { return Ok(NameState::Free(known)) };
    if is_in_place(existing) && tags::is_unfinished(existing) {
        if !group.shared().instance.is_creating(existing) {
            return Err(being_made());
        }
        remove_unfinished(group, &known, existing).await?;
        known = group.try_cached()?;
    }
    // The unfinished volume may have become ready just before its removal.
    let Some(existing) = known.volume(name.as_str()) else { return Ok(NameState::Free(known)) };
    let full_name = FullName::new(&known.name, name);
    if is_in_place(existing) && tags::is_unfinished(existing) {
        return Err(Error::BeingMade(full_name));
    }
    if is_in_place(existing) && tags::is_wiping(existing) {
        rename_for_wiping(group, existing, name, &[]).await?;
        return Ok(NameState::Free(group.try_cached()?));
    }
    if let Some(difference) = mismatch(&known, existing) {
        return Err(Error::AlreadyExists(full_name, difference));
    }
    Ok(NameState::Exists(Box::new(group.ensure_active(existing).await?)))
}

/// Returns the volume that LVM has just created. What a failure left behind is removed at once if possible.
pub(super) async fn finish_creation<R: Host>(
    group: &mut LockedGroup<R>,
    name: &LvName,
    making: &Tag,
    changed: Changed,
) -> Result<LogicalVolume, Error> {
    match group.store_outcome(changed) {
        Ok(()) => match group.created_volume(name)? {
            // Another lvmd with the same socket removed what was created here, and is creating it again.
            volume if tags::is_unfinished(&volume) => Err(Error::BeingMade(FullName::new(&group.name, name))),
            volume => Ok(volume),
        },
        Err(error) => {
            if let Err(error) = remove_failed_creation(group, name, making, &error).await {
                let error = error_chain(&error);
                let vg = &group.name;
                tracing::error!(%vg, %name, error, "a volume stays unfinished until it is asked for again");
            }
            if let lvm::Error::VolumeNotFound(name) = error {
                // For the caller "not found" would mean that what it named is proven absent.
                return Err(Error::Vanished(name));
            }
            Err(error.into())
        }
    }
}

/// Removes what a failed attempt left: a volume with its tag or, where LVM may have removed the tag of a volume that it
/// could not wipe, without any. Another instance may have created a volume of the name, which stays.
async fn remove_failed_creation<R: Host>(
    group: &mut LockedGroup<R>,
    name: &LvName,
    making: &Tag,
    error: &lvm::Error,
) -> Result<(), Error> {
    let known = group.current().await?;
    let Some(volume) = known.volume(name.as_str()) else { return Ok(()) };
    let has_lost_its_tag = || may_have_created(error) && tags::is_managed(volume) && tags::making_tag(volume).is_none();
    if volume.has_tag(making) || has_lost_its_tag() {
        return remove_unfinished(group, &known, volume).await;
    }
    Ok(())
}

/// Removes an unfinished volume unless it has become ready since the report: LVM itself checks the tag, under its own
/// lock. LVM refuses while the volume is open.
pub(super) async fn remove_unfinished<R: Host>(
    group: &mut LockedGroup<R>,
    known: &VolumeGroup,
    volume: &LogicalVolume,
) -> Result<(), Error> {
    let vg = &known.name;
    let name: LvName = volume.name.parse()?;
    if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
        let why = format!("is unfinished, and {snapshot} depends on it");
        return Err(Error::NotAllowed(FullName::new(vg, &name), why));
    }
    tracing::warn!(%vg, %name, "removing an unfinished volume");
    let removed = group.lvm().remove_if(vg, &name, &volume.uuid, tags::making_tag(volume)).await;
    match group.store_outcome(removed) {
        Ok(()) => Ok(()),
        Err(lvm::Error::Changed { .. }) => {
            tracing::info!(%vg, %name, "the volume has become ready, and stays");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns whether LVM may have created a volume before it failed. It refuses for the other reasons beforehand.
fn may_have_created(error: &lvm::Error) -> bool {
    use lvm::Error::{AlreadyExists, Busy, DuplicateName, GroupNotFound, Incomplete, Locked, NoSpace};
    !matches!(
        error,
        AlreadyExists(_) | Busy(_) | DuplicateName { .. } | GroupNotFound(_) | Incomplete(_) | Locked(_) | NoSpace(_)
    )
}
