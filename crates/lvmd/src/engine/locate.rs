//! Locates the volume of a request that names a device class and a volume: where the class has its volumes, or, when
//! the class had another place before or is no longer configured, wherever lvmd created it. topolvm-node names a volume
//! by the UID of its object, so it is the one volume of that name on the machine.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, VolumeGroup};

use super::group::Group;
use super::state::Engine;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

/// The part of a volume group in which the volume of a request may lie.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// The place where this class has its volumes.
    Class(Arc<DeviceClass>),
    /// Anywhere, if lvmd or TopoLVM created it: the search through the machine found it in this group.
    Machine(RequestedClass),
}

/// The state of the device class of a request. It decides which volumes outside of the class a search takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedClass {
    /// The class is configured, and may have had its volumes elsewhere before.
    Configured,
    /// The class is no longer configured, or never was.
    NotConfigured,
}

impl<R: Host> Engine<R> {
    /// Runs a change of a volume under the lock of its group: where its class has volumes, or else where the search
    /// finds it. When it is found nowhere, the error is that of the first place, so that [`Error::VolumeNotFound`] is a
    /// proof for the whole machine.
    pub(super) async fn change_volume<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        class: &str,
        name: &LvName,
        change: impl FnOnce(Self, Arc<Group>, Scope) -> F + Clone,
    ) -> Result<T, Error> {
        let requested = self.requested_class(class);
        let in_class = match self.group_of_class(class) {
            Ok((group, class)) => {
                let change = change.clone();
                let change = |engine, group| change(engine, group, Scope::Class(class));
                self.with_volume_at_rest(group, name, change).await
            }
            Err(error) => Err(error),
        };
        match in_class {
            Err(error) if may_be_elsewhere(&error) => match self.search_machine(name, requested).await? {
                Some(group) => {
                    let vg = &group.name;
                    tracing::info!(%vg, %name, class, "the volume is not where its device class has volumes now");
                    let change = |engine, group| change(engine, group, Scope::Machine(requested));
                    self.with_volume_at_rest(group, name, change).await
                }
                None => Err(error),
            },
            in_class => in_class,
        }
    }

    /// Returns the volume of a request from its group, and the class whose volumes lie where it lies.
    pub(super) fn find_in_scope<'a>(
        &self,
        scope: &Scope,
        known: &'a VolumeGroup,
        name: &LvName,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        match scope {
            Scope::Class(class) => Ok((find_in_class(class, known, name)?, Some(Arc::clone(class)))),
            Scope::Machine(requested) => {
                let not_found = || Error::VolumeNotFound(FullName::new(&known.name, name));
                let volume = known.volume(name.as_str()).ok_or_else(not_found)?;
                if !self.matches_request(known, volume, *requested)? {
                    return Err(not_found());
                }
                Ok((volume, self.class_that_owns(&known.name, volume)))
            }
        }
    }

    /// Refuses to create a volume that exists already in another group: it was created before its class had another
    /// group, and the client never got the answer. And one that is in quarantine in any group, with its data.
    pub(super) fn check_not_created_elsewhere(&self, own: &Group, name: &LvName) -> Result<(), Error> {
        if !lvm::is_uuid(name.as_str()) {
            return Ok(());
        }
        let quarantined = tags::quarantine_name(name.as_str())?;
        for group in self.groups().values() {
            let Some(known) = group.cached() else { continue };
            if known.volume(quarantined.as_str()).is_some() {
                return Err(Error::Quarantined(FullName::new(&group.name, &quarantined)));
            }
            if group.name == own.name {
                continue;
            }
            if let Some(volume) = known.volume(name.as_str())
                && tags::is_managed(volume)
                && !tags::is_hidden(volume)
            {
                let difference = "is where its device class had its volumes before; remove it first".to_owned();
                return Err(Error::AlreadyExists(FullName::new(&group.name, name), difference));
            }
        }
        Ok(())
    }

    pub(super) fn requested_class(&self, class: &str) -> RequestedClass {
        if self.class(class).is_ok() { RequestedClass::Configured } else { RequestedClass::NotConfigured }
    }

    pub(super) fn group_of_class(&self, class: &str) -> Result<(Arc<Group>, Arc<DeviceClass>), Error> {
        let class = self.class(class)?;
        Ok((self.group(&class.volume_group)?, class))
    }

    /// Searches all volume groups of the machine for a volume and returns its group. `None` is proof that the volume is
    /// in no group that LVM finds, in none that has gone since this process began, and in none that classes had before.
    /// A group that cannot be read proves nothing and is an error.
    async fn search_machine(&self, name: &LvName, requested: RequestedClass) -> Result<Option<Arc<Group>>, Error> {
        let mut unreadable = None;
        for group in self.groups().values() {
            let _lock = group.lock().await;
            if let Err(error) = self.current(group).await
                && !matches!(error, Error::VolumeGroupMissing(_))
            {
                unreadable = Some(error);
            }
        }
        match (self.search_cached_groups(name, requested), unreadable) {
            (Ok(Some(group)), _) => Ok(Some(group)),
            (Err(error), _) | (Ok(None), Some(error)) => Err(error),
            (Ok(None), None) => {
                let (found, others) = self.search_other_groups(name, requested).await?;
                if found.is_none() {
                    self.check_former_groups(&others)?;
                }
                Ok(found)
            }
        }
    }

    /// Searches the cached reports of all tracked groups for a volume and returns its group.
    pub(super) fn search_cached_groups(
        &self,
        name: &LvName,
        requested: RequestedClass,
    ) -> Result<Option<Arc<Group>>, Error> {
        let mut found = Vec::new();
        let mut missing = None;
        for group in self.groups().into_values() {
            match group.try_cached() {
                Ok(known) => {
                    if let Some(volume) = known.volume(name.as_str())
                        && self.matches_request(&known, volume, requested)?
                    {
                        found.push(group);
                    }
                }
                Err(error @ Error::VolumeGroupUnreadable { .. }) => missing = Some(error),
                Err(error) if group.lost_volume(name.as_str()) => missing = Some(error),
                Err(_) => {}
            }
        }
        if found.len() > 1 {
            let vgs = found.iter().map(|group| group.name.to_string()).collect();
            return Err(Error::Ambiguous { name: name.clone(), vgs });
        }
        match (found.pop(), missing) {
            (Some(group), _) => Ok(Some(group)),
            (None, Some(missing)) => Err(missing),
            (None, None) => Ok(None),
        }
    }

    /// Asks LVM for all groups that are not tracked, searches them for a volume, and tracks its group from then on.
    /// Returns it, and the groups without the volume. A group that cannot be read proves nothing.
    pub(super) async fn search_other_groups(
        &self,
        name: &LvName,
        requested: RequestedClass,
    ) -> Result<(Option<Arc<Group>>, Vec<VolumeGroup>), Error> {
        let tracked: Vec<_> = self.groups().into_keys().collect();
        let (mut others, mut unreadable) = (Vec::new(), None);
        for group in self.inner.lvm.volume_groups_except(&tracked).await? {
            let group = match group {
                Ok(group) => group,
                // It may have been this machine's, which lost its identity
                Err(lvm::Error::OtherMachine { group, .. }) if group.volume(name.as_str()).is_none() => continue,
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            if let Some(volume) = group.volume(name.as_str())
                && self.matches_request(&group, volume, requested)?
            {
                let vg = group.name.clone();
                self.track_group(group);
                return Ok((Some(self.group(&vg)?), others));
            }
            others.push(group);
        }
        unreadable.map_or(Ok((None, others)), |error| Err(error.into()))
    }

    /// Returns whether a volume that has the requested name is the requested one. A UUID is the name of one volume
    /// only; another name may have been given in two classes, and counts if one of the two is no longer configured.
    /// Volumes that TopoLVM created carry no tag of lvmd's and are known by their UUID; where no class has volumes an
    /// administrator must tag them.
    fn matches_request(
        &self,
        group: &VolumeGroup,
        volume: &LogicalVolume,
        requested: RequestedClass,
    ) -> Result<bool, Error> {
        if volume.attr.holds_volumes() {
            return Ok(false);
        }
        let is_uid = lvm::is_uuid(&volume.name);
        let has_class = self.class_that_owns(&group.name, volume).is_some();
        if tags::is_managed(volume) || !is_uid {
            let is_unique = is_uid || !has_class || requested == RequestedClass::NotConfigured;
            return Ok(tags::is_managed(volume) && is_unique);
        }
        if has_class {
            return Ok(true);
        }
        let name = FullName::new(&group.name, &volume.name.parse()?);
        let why = format!(
            "has the name that is asked for, but no device class has volumes there and lvmd did not make it; if it is \
             the \
             volume, say so with `lvchange --addtag {} {name}`, or rename it",
            tags::MANAGED
        );
        Err(Error::NotAllowed(name, why))
    }
}

/// Returns a volume of a class. Fails for a volume of this name in another pool, or in none: it may be somebody else's,
/// and nobody may conclude that the wanted one is gone.
fn find_in_class<'a>(class: &DeviceClass, group: &'a VolumeGroup, name: &LvName) -> Result<&'a LogicalVolume, Error> {
    let not_found = || Error::VolumeNotFound(FullName::new(&group.name, name));
    let not_allowed = |why| Error::NotAllowed(FullName::new(&group.name, name), why);
    let volume = group.volume(name.as_str()).ok_or_else(not_found)?;
    // Volumes that hold other volumes are the administrator's: removing a pool removes everything in it.
    if volume.attr.holds_volumes() {
        return Err(not_allowed("holds other volumes and is not touched".to_owned()));
    }
    if !class.owns(volume) {
        return Err(Error::Elsewhere(FullName::new(&group.name, name), not_in_place(class)));
    }
    Ok(volume)
}

/// Says that a volume of the class's group does not lie where the class has its volumes.
pub(super) fn not_in_place(class: &DeviceClass) -> String {
    match &class.thin_pool {
        Some(pool) => format!("is not in thin pool {}, where device class {} keeps its volumes", pool.name, class.name),
        None => format!("is in a thin pool, where device class {} keeps no volumes", class.name),
    }
}

/// Returns whether a volume that was not found in its class has to be searched for elsewhere.
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
