//! Removing volumes. Those of a class that wipes are put aside, and removed when they are wiped.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, VolumeGroup, Wipe};

use super::Engine;
use super::change::{check_complete, check_pool};
use super::group::Group;
use super::locate::Place;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::marks;

impl<R: Host> Engine<R> {
    /// Removes a volume. [`Error::VolumeNotFound`] means that every volume group of the machine was read and the volume is in
    /// none of them.
    pub async fn remove(&self, class: &str, name: LvName) -> Result<(), Error> {
        let requested = self.class(class).ok();
        let sought = name.clone();
        self.where_it_is(class, &sought, async move |engine: Self, group: Arc<Group>, place: Place| {
            let known = engine.current(&group).await?;
            let (volume, owner) = engine.find_in(&place, &known, &name)?;
            let wipe = how_to_wipe(&place, requested.as_deref(), owner.as_deref(), volume);
            engine.remove_alone(&group, &known, volume, &name, owner.as_deref(), wipe).await
        })
        .await
    }

    /// Removes a volume that nothing depends on. `class` has its volumes where this one is.
    async fn remove_alone(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        class: Option<&DeviceClass>,
        wipe: Option<Wipe>,
    ) -> Result<(), Error> {
        if marks::is_wiping(volume) {
            return self.put_aside(group, volume, name).await;
        }
        // lvremove --force takes them along without a word.
        let snapshots: Vec<_> = known.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        if let Some(class) = class {
            check_pool(class, known)?;
        }
        if let Some(how) = wipe.filter(|_| !volume.attr.is_thin()) {
            return self.begin_to_wipe(group, known, volume, name, how).await;
        }
        Ok(self.take(group, self.inner.lvm.remove_if(&group.name, name, &volume.uuid, None).await)?)
    }

    /// Leaves a volume to those who wipe. From then on it is gone as far as anybody is told, but not its room.
    async fn begin_to_wipe(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        how: Wipe,
    ) -> Result<(), Error> {
        check_complete(known)?;
        if volume.origin.is_some() || !volume.attr.is_overwritten_in_place() {
            let why = "is of a kind that cannot be wiped by writing to it; remove it with lvremove".to_owned();
            return Err(Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why });
        }
        if self.is_open(group, known, volume).await? {
            return Err(Error::InUse { vg: group.name.clone(), name: name.clone() });
        }
        let tags = self.inner.maker.wiping(how)?;
        let aside = marks::aside_name(volume)?;
        Ok(self.take(group, self.inner.lvm.set_aside(&group.name, name, &volume.uuid, &tags, &aside).await)?)
    }

    /// Gives the name of a volume that is being wiped free. When a crash came between its two changes it still has it.
    pub(super) async fn put_aside(&self, group: &Group, volume: &LogicalVolume, name: &LvName) -> Result<(), Error> {
        let aside = marks::aside_name(volume)?;
        Ok(self.take(group, self.inner.lvm.set_aside(&group.name, name, &volume.uuid, &[], &aside).await)?)
    }

    /// Whether somebody has the device of a volume open.
    pub(super) async fn is_open(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
    ) -> Result<bool, Error> {
        if let Ok(status) = group.status(self.devices(), known, volume).await {
            return Ok(status.is_some_and(|status| status.open_count > 0));
        }
        // LVM sees more than we do from here.
        self.ask_lvm(group).await?;
        let known = group.known()?;
        let now = known.volumes.iter().find(|other| other.uuid == volume.uuid);
        Ok(now.is_none_or(|volume| volume.attr.is_open()))
    }
}

/// How the contents of a volume are wiped. Its class decides if it has its volumes where this one is. Elsewhere, and when it is no
/// longer configured, the volume is wiped if any of them wants that: the class when it was made, the class that is asked for, the
/// class that has volumes there now.
fn how_to_wipe(
    place: &Place,
    requested: Option<&DeviceClass>,
    owner: Option<&DeviceClass>,
    volume: &LogicalVolume,
) -> Option<Wipe> {
    let wanted = match place {
        Place::OfClass(class) => vec![class.wipe],
        Place::Anywhere(_) => {
            vec![marks::wipe(volume), requested.and_then(|class| class.wipe), owner.and_then(|class| class.wipe)]
        }
    };
    let wanted: Vec<_> = wanted.into_iter().flatten().collect();
    // Zeroing leaves nothing on any disk.
    if wanted.contains(&Wipe::Zero) { Some(Wipe::Zero) } else { wanted.first().copied() }
}
