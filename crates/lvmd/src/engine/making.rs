//! Volumes that take several LVM commands to make: begun with a mark, ready when the mark is gone, removed if a crash or a
//! failure came in between. See [`marks`].

use std::sync::Arc;

use lvm::{Changed, Host, LogicalVolume, LvName, VolumeGroup};
use topolvm_runtime::error_chain;

use super::change::find;
use super::group::Group;
use super::{Engine, place};
use crate::error::Error;
use crate::marks;

/// Whether a name can be given to a new volume.
pub(super) enum Vacancy {
    /// There is no volume of that name in the group.
    Free(Arc<VolumeGroup>),
    /// There is one, and it is the wanted one.
    Taken(Box<LogicalVolume>),
}

/// A volume that was found half made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HalfMade {
    name: LvName,
    uuid: String,
    is_ours: bool,
    /// At how many sweeps in a row it was.
    seen: u32,
}

/// What another lvmd makes is left alone at so many sweeps: a snapshot is made by two LVM processes, and each may take as long
/// as there is between two sweeps.
const PATIENCE: u32 = 2;

impl<R: Host> Engine<R> {
    /// Whether a volume of this name can be made, in the part of the group that `is_here` tells. One that is there must fit, unless it was left half made: that one is
    /// removed, for it may hold another tenant's data.
    pub(super) async fn vacancy(
        &self,
        group: &Group,
        is_here: impl Fn(&LogicalVolume) -> bool,
        name: &LvName,
        difference: impl Fn(&VolumeGroup, &LogicalVolume) -> Option<String>,
    ) -> Result<Vacancy, Error> {
        let mut known = self.current(group).await?;
        let Some(existing) = known.volume(name.as_str()) else { return Ok(Vacancy::Free(known)) };
        if is_here(existing) && marks::is_half_made(existing) {
            if !self.inner.maker.began(existing) {
                return Err(Error::BeingMade { vg: group.name.clone(), name: name.clone() });
            }
            self.remove_half_made(group, &known, existing).await?;
            known = group.known()?;
        }
        // What was half made may be ready by now: the one who made it was about to say so.
        let Some(existing) = known.volume(name.as_str()) else { return Ok(Vacancy::Free(known)) };
        if is_here(existing) && marks::is_half_made(existing) {
            return Err(Error::BeingMade { vg: group.name.clone(), name: name.clone() });
        }
        if is_here(existing) && marks::is_wiping(existing) {
            self.put_aside(group, existing, name).await?;
            return Ok(Vacancy::Free(group.known()?));
        }
        if let Some(difference) = difference(&known, existing) {
            return Err(Error::AlreadyExists { vg: group.name.clone(), name: name.clone(), difference });
        }
        Ok(Vacancy::Taken(Box::new(self.usable(group, existing).await?)))
    }

    /// An existing volume with the device that it has now. Whoever wants the volume wants to use it, so one that is not
    /// active gets a device.
    pub(super) async fn usable(&self, group: &Group, existing: &LogicalVolume) -> Result<LogicalVolume, Error> {
        let Ok(name) = existing.name.parse() else { return Ok(existing.clone()) };
        let volume = if let Some(devices) = self.mapped(group).await {
            let mut volume = existing.clone();
            place(&mut volume, &group.name, Some(&devices));
            volume
        } else {
            self.ask_lvm(group).await?;
            find(group, &name)?
        };
        if volume.device.is_some() {
            return Ok(volume);
        }
        tracing::info!(vg = %group.name, %name, "activating a volume that somebody wants to use");
        self.take(group, self.inner.lvm.activate(&group.name, &name).await)?;
        find(group, &name)
    }

    /// The volume that was made with the mark. What failed is removed at once if that can be done.
    pub(super) async fn made(&self, group: &Group, name: &LvName, changed: Changed) -> Result<LogicalVolume, Error> {
        match self.take(group, changed) {
            Ok(()) => match find(group, name)? {
                // Another lvmd with the same socket removed what was made here, and is making it anew.
                volume if marks::is_half_made(&volume) => {
                    Err(Error::BeingMade { vg: group.name.clone(), name: name.clone() })
                }
                volume => Ok(volume),
            },
            Err(error) => {
                // The name was free, so what has it now was made by this attempt, unless LVM says that somebody was faster.
                if !matches!(error, lvm::Error::AlreadyExists { .. })
                    && let Err(error) = self.clean_up(group, name).await
                {
                    let error = error_chain(&error);
                    tracing::error!(vg = %group.name, %name, error, "a volume stays half made until it is asked for again");
                }
                if let lvm::Error::VolumeNotFound { vg, name } = error {
                    // For the caller "not found" would mean that what it named is proven absent.
                    return Err(Error::Vanished { vg, name });
                }
                Err(error.into())
            }
        }
    }

    async fn clean_up(&self, group: &Group, name: &LvName) -> Result<(), Error> {
        let known = self.current(group).await?;
        match known.volume(name.as_str()) {
            Some(volume) if marks::is_managed(volume) => self.remove_half_made(group, &known, volume).await,
            _ => Ok(()),
        }
    }

    /// Removes a half-made volume, whatever was done to it, unless it has become ready since it was looked at: LVM itself sees
    /// to that. LVM refuses while it is open.
    async fn remove_half_made(&self, group: &Group, known: &VolumeGroup, volume: &LogicalVolume) -> Result<(), Error> {
        // Only lvmd writes the marks, so the names of these volumes are such that it can have given.
        let name: LvName = volume.name.parse()?;
        if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
            let why = format!("is half made, and {snapshot} depends on it");
            return Err(Error::NotAllowed { vg: group.name.clone(), name, why });
        }
        tracing::warn!(vg = %group.name, %name, "removing a volume that was left half made");
        let removed = self.inner.lvm.remove_if(&group.name, &name, &volume.uuid, marks::making(volume)).await;
        match self.take(group, removed) {
            Ok(()) => Ok(()),
            Err(lvm::Error::Changed { .. }) => {
                tracing::info!(vg = %group.name, %name, "the volume has become ready, and stays");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what was left half made: by an earlier process of this maker, or by another one so long ago that it was half
    /// made already at the sweeps before. Returns what is half made now. The caller has the group's turn, so none of it
    /// is being made here.
    pub(super) async fn sweep(&self, group: &Group, before: &[HalfMade]) -> Vec<HalfMade> {
        let mut found = self.half_made(group);
        for volume in &mut found {
            let is_it = |other: &&HalfMade| other.uuid == volume.uuid;
            volume.seen = before.iter().find(is_it).map_or(1, |before| before.seen.saturating_add(1));
            if (volume.is_ours || volume.seen > PATIENCE)
                && let Some(known) = group.get()
                && let Some(found) = known.volumes.iter().find(|other| *other.uuid == *volume.uuid)
                && let Err(error) = self.remove_half_made(group, &known, found).await
            {
                let error = error_chain(&error);
                tracing::error!(vg = %group.name, name = %volume.name, error, "cannot remove a volume that was left half made");
            }
        }
        let left = self.half_made(group);
        found.retain(|volume| left.iter().any(|left| left.uuid == volume.uuid));
        found
    }

    /// Only lvmd writes the marks, so the names of these volumes are such that it can have given.
    fn half_made(&self, group: &Group) -> Vec<HalfMade> {
        let Some(known) = group.get() else { return Vec::new() };
        let volumes = known.volumes.iter().filter(|volume| marks::is_half_made(volume));
        let half_made = volumes.filter_map(|volume| {
            let is_ours = self.inner.maker.began(volume);
            Some(HalfMade { name: volume.name.parse().ok()?, uuid: volume.uuid.to_string(), is_ours, seen: 0 })
        });
        half_made.collect()
    }
}
