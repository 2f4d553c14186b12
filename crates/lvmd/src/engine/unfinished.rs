//! Unfinished volumes: their creation takes several LVM commands, and carries the LVM tag `topolvm.io/making=...` from
//! the first to the last. A crash or a failure in between leaves a volume with the tag, which is removed. See [`tags`].

use std::sync::Arc;

use lvm::{Changed, FullName, Host, LogicalVolume, LvName, Tag, VolumeGroup};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::tags;

/// The state of a name that a new volume is to get.
pub(super) enum NameState {
    /// No volume of the group has the name.
    Free(Arc<VolumeGroup>),
    /// The wanted volume exists already.
    Exists(Box<LogicalVolume>),
}

/// An unfinished volume that a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnfinishedVolume {
    name: LvName,
    uuid: String,
    /// True if this instance of lvmd began its creation.
    is_ours: bool,
    /// False if another machine began it.
    is_of_this_machine: bool,
    /// Number of sweeps in a row that found it.
    sweeps: u32,
}

/// Number of sweeps that leave the unfinished volume of another lvmd alone: a snapshot is created by two LVM processes,
/// and each may take as long as there is between two sweeps.
const SWEEPS_FOR_OTHERS: u32 = 2;

/// Returns whether LVM may have created a volume before it failed. It refuses for the other reasons beforehand.
fn may_have_created(error: &lvm::Error) -> bool {
    use lvm::Error::{AlreadyExists, Busy, DuplicateName, GroupNotFound, Incomplete, Locked, NoSpace};
    !matches!(
        error,
        AlreadyExists(_) | Busy(_) | DuplicateName { .. } | GroupNotFound(_) | Incomplete(_) | Locked(_) | NoSpace(_)
    )
}

impl<R: Host> Engine<R> {
    /// Makes the name of a new volume free, or returns the existing volume if `mismatch` finds no difference from the
    /// wanted one. Removes an unfinished volume of this name, which may hold another tenant's data, and renames one
    /// that is being wiped, each only in the part of the group that `is_in_place` selects. The caller holds the group's
    /// lock.
    pub(super) async fn prepare_name(
        &self,
        group: &Group,
        is_in_place: impl Fn(&LogicalVolume) -> bool,
        name: &LvName,
        mismatch: impl Fn(&VolumeGroup, &LogicalVolume) -> Option<String>,
    ) -> Result<NameState, Error> {
        let being_made = || Error::BeingMade(FullName::new(&group.name, name));
        let mut known = self.current(group).await?;
        let Some(existing) = known.volume(name.as_str()) else { return Ok(NameState::Free(known)) };
        if is_in_place(existing) && tags::is_unfinished(existing) {
            if !self.inner.instance.is_creating(existing) {
                return Err(being_made());
            }
            self.remove_unfinished(group, &known, existing).await?;
            known = group.try_cached()?;
        }
        // The unfinished volume may have become ready just before its removal.
        let Some(existing) = known.volume(name.as_str()) else { return Ok(NameState::Free(known)) };
        if is_in_place(existing) && tags::is_unfinished(existing) {
            return Err(being_made());
        }
        if is_in_place(existing) && tags::is_wiping(existing) {
            self.rename_for_wiping(group, existing, name, &[]).await?;
            return Ok(NameState::Free(group.try_cached()?));
        }
        if let Some(difference) = mismatch(&known, existing) {
            return Err(Error::AlreadyExists(FullName::new(&group.name, name), difference));
        }
        Ok(NameState::Exists(Box::new(self.ensure_active(group, existing).await?)))
    }

    /// Returns the volume that LVM has just created. What a failure left behind is removed at once if possible.
    pub(super) async fn finish_creation(
        &self,
        group: &Group,
        name: &LvName,
        making: &Tag,
        changed: Changed,
    ) -> Result<LogicalVolume, Error> {
        match self.store_outcome(group, changed) {
            Ok(()) => match group.created_volume(name)? {
                // Another lvmd with the same socket removed what was created here, and is creating it anew.
                volume if tags::is_unfinished(&volume) => Err(Error::BeingMade(FullName::new(&group.name, name))),
                volume => Ok(volume),
            },
            Err(error) => {
                if let Err(error) = self.remove_failed_creation(group, name, making, &error).await {
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

    /// Removes what a failed attempt left: a volume with its tag or, where LVM may have removed the tag of a volume
    /// that it could not wipe, without any. Another instance may have created a volume of the name, which stays.
    async fn remove_failed_creation(
        &self,
        group: &Group,
        name: &LvName,
        making: &Tag,
        error: &lvm::Error,
    ) -> Result<(), Error> {
        let known = self.current(group).await?;
        let Some(volume) = known.volume(name.as_str()) else { return Ok(()) };
        let has_lost_its_tag =
            || may_have_created(error) && tags::is_managed(volume) && tags::making_tag(volume).is_none();
        if volume.has_tag(making) || has_lost_its_tag() {
            return self.remove_unfinished(group, &known, volume).await;
        }
        Ok(())
    }

    /// Removes an unfinished volume unless it has become ready since the report: LVM itself looks for the tag, under
    /// its own lock. LVM refuses while the volume is open.
    pub(super) async fn remove_unfinished(
        &self,
        group: &Group,
        known: &VolumeGroup,
        volume: &LogicalVolume,
    ) -> Result<(), Error> {
        let name: LvName = volume.name.parse()?;
        if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
            let why = format!("is unfinished, and {snapshot} depends on it");
            return Err(Error::NotAllowed(FullName::new(&group.name, &name), why));
        }
        tracing::warn!(vg = %group.name, %name, "removing an unfinished volume");
        let removed = self.inner.lvm.remove_if(&group.name, &name, &volume.uuid, tags::making_tag(volume)).await;
        match self.store_outcome(group, removed) {
            Ok(()) => Ok(()),
            Err(lvm::Error::Changed { .. }) => {
                tracing::info!(vg = %group.name, %name, "the volume has become ready, and stays");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes unfinished volumes: those that an earlier process of this instance left, and those of other instances of
    /// this machine that the sweeps before found as well. Returns those that are left. The caller holds the group's
    /// lock, so none of them is being created here.
    pub(super) async fn sweep_unfinished(&self, group: &Group, before: &[UnfinishedVolume]) -> Vec<UnfinishedVolume> {
        let mut found = self.unfinished_volumes(group);
        for volume in &mut found {
            let is_same = |other: &&UnfinishedVolume| other.uuid == volume.uuid;
            volume.sweeps = before.iter().find(is_same).map_or(1, |before| before.sweeps.saturating_add(1));
            if (volume.is_ours || (volume.is_of_this_machine && volume.sweeps > SWEEPS_FOR_OTHERS))
                && let Some(known) = group.cached()
                && let Some(found) = known.volume_of_uuid(&volume.uuid)
                && let Err(error) = self.remove_unfinished(group, &known, found).await
            {
                let error = error_chain(&error);
                tracing::error!(vg = %group.name, name = %volume.name, error, "cannot remove an unfinished volume");
            }
        }
        let left = self.unfinished_volumes(group);
        found.retain(|volume| left.iter().any(|left| left.uuid == volume.uuid));
        found
    }

    /// Returns the unfinished volumes of a group. Only lvmd writes the tag, so their names are such as lvmd gives.
    fn unfinished_volumes(&self, group: &Group) -> Vec<UnfinishedVolume> {
        let Some(known) = group.cached() else { return Vec::new() };
        let volumes = known.volumes.iter().filter(|volume| tags::is_unfinished(volume));
        let unfinished = volumes.filter_map(|volume| {
            let is_ours = self.inner.instance.is_creating(volume);
            Some(UnfinishedVolume {
                name: volume.name.parse().ok()?,
                uuid: volume.uuid.to_string(),
                is_ours,
                is_of_this_machine: self.inner.instance.is_of_this_machine(volume),
                sweeps: 0,
            })
        });
        unfinished.collect()
    }
}
