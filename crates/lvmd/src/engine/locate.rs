//! Where a volume is that a request names together with a device class: where the class keeps its volumes, or, when the class
//! meant another place earlier or is no longer configured, wherever lvmd made it. topolvm-node names a volume by its object's UID,
//! so it is the one volume of that name on the machine.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, VolumeGroup};

use super::change::existing;
use super::group::Group;
use super::{Engine, available, place};
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::marks;

/// Where a volume may be in its group.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Where this class keeps its volumes.
    OfClass(Arc<DeviceClass>),
    /// Anywhere, if it is one that lvmd or TopoLVM made.
    Anywhere(Sought),
}

/// A volume that is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    /// Of a class that is configured, and may have had its volumes elsewhere before.
    OfClass,
    /// Of a class that is no longer configured, or was never.
    OfFormerClass,
}

impl<R: Host> Engine<R> {
    /// Does something to a volume where it is, when it is the turn of its group: where its class keeps volumes, or else where the
    /// search finds it. When it is found nowhere, the error is that of the first place, so that [`Error::VolumeNotFound`] is a
    /// proof for the whole machine.
    pub(super) async fn where_it_is<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        class: &str,
        name: &LvName,
        change: impl FnOnce(Self, Arc<Group>, Place) -> F + Clone,
    ) -> Result<T, Error> {
        let sought = self.sought(class);
        let first = match self.place_of(class) {
            Ok((group, class)) => {
                let change = change.clone();
                self.change(group, |engine, group| change(engine, group, Place::OfClass(class))).await
            }
            Err(error) => Err(error),
        };
        match first {
            Err(error) if may_be_elsewhere(&error) => match self.search(name, sought).await? {
                Some(group) => {
                    tracing::info!(vg = %group.name, %name, class, "the volume is not where its device class has volumes now");
                    self.change(group, |engine, group| change(engine, group, Place::Anywhere(sought))).await
                }
                None => Err(error),
            },
            first => first,
        }
    }

    /// The volume of a request, and the class that has its volumes where it is.
    pub(super) fn find_in<'a>(
        &self,
        place: &Place,
        known: &'a VolumeGroup,
        name: &LvName,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        match place {
            Place::OfClass(class) => Ok((existing(class, known, name)?, Some(Arc::clone(class)))),
            Place::Anywhere(sought) => {
                let not_found = || Error::VolumeNotFound { vg: known.name.clone(), name: name.clone() };
                let volume = known.volume(name.as_str()).ok_or_else(not_found)?;
                if !self.is_it(known, volume, *sought)? {
                    return Err(not_found());
                }
                Ok((volume, self.class_that_owns(&known.name, volume)))
            }
        }
    }

    /// A volume for somebody who only asks, from what is known. LVM is asked only when nobody knows the volume.
    pub async fn find(&self, class: &str, name: &LvName) -> Result<Option<LogicalVolume>, Error> {
        let first = match self.place_of(class) {
            Ok((group, class)) => self.known_volume(&group, name).await.and_then(|(known, volume)| {
                // That a pool is missing and that it is empty are not the same.
                available(&class, &known)?;
                Ok(volume.filter(|volume| class.owns(volume)))
            }),
            Err(error) => Err(error),
        };
        if let Ok(Some(volume)) = first {
            return Ok(Some(volume));
        }
        let sought = self.sought(class);
        match self.search_known(name, sought)? {
            Some(group) => Ok(self.known_volume(&group, name).await?.1),
            None => match self.search_others(name, sought).await? {
                Some(group) => Ok(self.known_volume(&group, name).await?.1),
                None => first,
            },
        }
    }

    async fn known_volume(
        &self,
        group: &Arc<Group>,
        name: &LvName,
    ) -> Result<(Arc<VolumeGroup>, Option<LogicalVolume>), Error> {
        let devices = self.mapped(group).await;
        if devices.is_none() {
            self.ask_lvm_once(group).await?;
        }
        let known = group.known()?;
        let mut volume = known.volume(name.as_str()).filter(|volume| !marks::is_hidden(volume)).cloned();
        if let Some(volume) = &mut volume {
            place(volume, &known.name, devices.as_ref());
        }
        Ok((known, volume))
    }

    /// A volume that was made before its class meant another group, and of which the client does not know, is not made again.
    pub(super) fn check_not_made_elsewhere(&self, own: &Group, name: &LvName) -> Result<(), Error> {
        if !marks::is_object_uid(name.as_str()) {
            return Ok(());
        }
        for group in self.groups().values().filter(|group| group.name != own.name) {
            let Some(known) = group.get() else { continue };
            if let Some(volume) = known.volume(name.as_str())
                && marks::is_managed(volume)
                && !marks::is_hidden(volume)
            {
                let difference = "is where its device class had its volumes before; remove it first".to_owned();
                return Err(Error::AlreadyExists { vg: group.name.clone(), name: name.clone(), difference });
            }
        }
        Ok(())
    }

    fn sought(&self, class: &str) -> Sought {
        if self.class(class).is_ok() { Sought::OfClass } else { Sought::OfFormerClass }
    }

    fn place_of(&self, class: &str) -> Result<(Arc<Group>, Arc<DeviceClass>), Error> {
        let class = self.class(class)?;
        Ok((self.group(&class.volume_group)?, class))
    }

    /// The group of a volume, wherever it is on the machine. `None` is proof that it is in no group that LVM finds, and was in
    /// none that has gone since this process began. A group that cannot be read proves nothing and is an error.
    async fn search(&self, name: &LvName, sought: Sought) -> Result<Option<Arc<Group>>, Error> {
        let mut unreadable = None;
        for group in self.groups().values() {
            let _turn = group.turn().await;
            if let Err(error) = self.current(group).await
                && !matches!(error, Error::VolumeGroupMissing(_))
            {
                unreadable = Some(error);
            }
        }
        match (self.search_known(name, sought), unreadable) {
            (Ok(Some(group)), _) => Ok(Some(group)),
            (Err(error), _) | (Ok(None), Some(error)) => Err(error),
            (Ok(None), None) => self.search_others(name, sought).await,
        }
    }

    /// The same in the groups that are known, and by what is known of them.
    fn search_known(&self, name: &LvName, sought: Sought) -> Result<Option<Arc<Group>>, Error> {
        let mut found = Vec::new();
        let mut missing = None;
        for group in self.groups().into_values() {
            match group.get() {
                Some(known) => {
                    if let Some(volume) = known.volume(name.as_str())
                        && self.is_it(&known, volume, sought)?
                    {
                        found.push(group);
                    }
                }
                None if group.had(name.as_str()) => missing = Some(group.name.clone()),
                None => {}
            }
        }
        if found.len() > 1 {
            let vgs = found.iter().map(|group| group.name.to_string()).collect();
            return Err(Error::Ambiguous { name: name.clone(), vgs });
        }
        match (found.pop(), missing) {
            (Some(group), _) => Ok(Some(group)),
            (None, Some(missing)) => Err(Error::VolumeGroupMissing(missing)),
            (None, None) => Ok(None),
        }
    }

    /// The same in all other groups of the machine, for which LVM is asked. A group with such a volume is looked after from now on.
    async fn search_others(&self, name: &LvName, sought: Sought) -> Result<Option<Arc<Group>>, Error> {
        let known: Vec<_> = self.groups().into_keys().collect();
        for group in self.inner.lvm.volume_groups_except(&known).await? {
            if let Some(volume) = group.volume(name.as_str())
                && self.is_it(&group, volume, sought)?
            {
                let vg = group.name.clone();
                self.look_after(group);
                return self.group(&vg).map(Some);
            }
        }
        Ok(None)
    }

    /// Whether a volume of the sought name is the sought one. A UUID is the name of one volume only; another name may have been
    /// given in two classes, and counts if one of the two is no longer configured. Volumes that TopoLVM made carry no tag of lvmd's and
    /// are known by their UUID; where no class has volumes an administrator must say so.
    fn is_it(&self, group: &VolumeGroup, volume: &LogicalVolume, sought: Sought) -> Result<bool, Error> {
        if volume.attr.holds_volumes() {
            return Ok(false);
        }
        let is_uid = marks::is_object_uid(&volume.name);
        let has_class = self.class_that_owns(&group.name, volume).is_some();
        if marks::is_managed(volume) || !is_uid {
            let is_alone = is_uid || !has_class || sought == Sought::OfFormerClass;
            return Ok(marks::is_managed(volume) && is_alone);
        }
        if has_class {
            return Ok(true);
        }
        let (vg, name) = (group.name.clone(), volume.name.parse()?);
        let why = format!(
            "has the name that is asked for, but no device class has volumes there and lvmd did not make it; if it is the volume, say so with \
             `lvchange --addtag {} {vg}/{name}`, or rename it",
            marks::MANAGED
        );
        Err(Error::NotAllowed { vg, name, why })
    }
}

/// Whether somebody who did not find a volume has to look elsewhere.
fn may_be_elsewhere(error: &Error) -> bool {
    matches!(
        error,
        Error::VolumeNotFound { .. }
            | Error::Elsewhere { .. }
            | Error::UnknownDeviceClass(_)
            | Error::VolumeGroupMissing(_)
            | Error::ThinPoolMissing { .. }
            | Error::ThickClass(_)
    )
}
