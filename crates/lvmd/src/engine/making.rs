//! Volumes that take several LVM commands to make: begun with a mark, ready when the mark is gone, removed if a crash or a
//! failure came in between. See [`marks`].

use lvm::{CommandRunner, LogicalVolume, LvName, VgName, VolumeGroup};

use super::Engine;
use crate::error::Error;
use crate::marks;

/// A volume that was found half made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HalfMade {
    vg: VgName,
    name: LvName,
    uuid: String,
}

/// The half-made volumes of a group. Only lvmd writes the marks, so their names are such that it can have given.
pub(super) fn half_made(group: &VolumeGroup) -> impl Iterator<Item = HalfMade> {
    let volumes = group.volumes.iter().filter(|volume| marks::is_half_made(volume));
    volumes.filter_map(|volume| {
        let name = volume.name.parse().ok()?;
        Some(HalfMade { vg: group.name.clone(), name, uuid: volume.uuid.clone() })
    })
}

impl<R: CommandRunner> Engine<R> {
    /// Removes what was left half made. What cannot be removed now is left for the next request about it, or the next
    /// look.
    pub(crate) async fn remove_left_over(&self, found: Vec<HalfMade>) {
        for HalfMade { vg, name, uuid } in found {
            let removed = async {
                let turn = self.lock(&vg).await?;
                let (engine, vg, name) = (self.clone(), vg.clone(), name.clone());
                let is_the_same = move |volume: &LogicalVolume| marks::is_half_made(volume) && volume.uuid == uuid;
                self.finish(async move {
                    let group = engine.group(&vg).await?;
                    // Somebody may have asked for it in the meantime.
                    if group.volume(name.as_str()).is_some_and(is_the_same) {
                        engine.remove_half_made(&group, &name).await?;
                    }
                    drop(turn);
                    Ok(())
                })
                .await
            };
            if let Err(error) = removed.await {
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::error!(%vg, %name, error, "cannot remove a volume that was left half made");
            }
        }
    }

    /// Makes a volume of a group ready after `begun`, which was made with the mark, by taking the mark away. What fails is
    /// removed at once if that can be done.
    pub(super) async fn make_ready(
        &self,
        vg: &VgName,
        name: &LvName,
        begun: Result<(), lvm::Error>,
    ) -> Result<LogicalVolume, Error> {
        let making = [marks::making()?];
        let ready = match begun {
            Ok(()) => self.judged(self.inner.lvm.change_tags(vg, name, &[], &making).await),
            Err(error) => Err(error),
        };
        self.changed();
        let vanished = || Error::Vanished { vg: vg.clone(), name: name.clone() };
        match ready {
            Ok(()) => self.group(vg).await?.volume(name.as_str()).cloned().ok_or_else(vanished),
            // For the caller this would mean that what it named is proven absent.
            Err(lvm::Error::VolumeNotFound { .. }) => Err(vanished()),
            Err(error) => {
                if let Err(error) = self.clean_up(vg, name).await {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::error!(%vg, %name, error, "a volume stays half made until it is asked for again");
                }
                Err(error.into())
            }
        }
    }

    async fn clean_up(&self, vg: &VgName, name: &LvName) -> Result<(), Error> {
        let group = self.group(vg).await?;
        match group.volume(name.as_str()) {
            Some(volume) if marks::is_half_made(volume) => self.remove_half_made(&group, name).await,
            _ => Ok(()),
        }
    }

    /// Removes a half-made volume, whatever was done to it. LVM refuses while it is open.
    pub(super) async fn remove_half_made(&self, group: &VolumeGroup, name: &LvName) -> Result<(), Error> {
        if let Some(snapshot) = group.snapshots_of(name.as_str()).next() {
            let why = format!("is half made, and {snapshot} depends on it");
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        tracing::warn!(vg = %group.name, %name, "removing a volume that was left half made");
        self.judged(self.inner.lvm.remove(&group.name, name).await)?;
        self.changed();
        Ok(())
    }
}
