//! Searches the machine for the volume of a request that is not where its device class has volumes.

use std::sync::Arc;

use lvm::{FullName, Host, LvName, VolumeGroup};
use lvmd_config::tags;

use super::group::Group;
use super::group_tags::check_former_groups;
use super::scope::{RequestedClass, Scope, matches_request};
use super::state::{LockedGroup, Shared};
use super::tracking::track_group;
use crate::error::Error;

/// A search for the volume of a request.
pub(super) struct Search<'a, R> {
    shared: &'a Arc<Shared<R>>,
    name: &'a LvName,
    requested: RequestedClass,
}

impl<'a, R: Host> Search<'a, R> {
    /// Returns a search for the volume of this name, which a request names together with this class.
    pub(super) fn new(shared: &'a Arc<Shared<R>>, class: &str, name: &'a LvName) -> Self {
        Self { shared, name, requested: RequestedClass::of(&shared.classes(), class) }
    }

    /// Searches all volume groups of the machine for the volume and returns its group. `None` is proof that the volume
    /// is in no group that LVM finds, in none that has gone since this process began, and in none that classes had
    /// before. A group that cannot be read proves nothing and is an error.
    async fn search_machine(&self) -> Result<Option<Arc<Group>>, Error> {
        let mut unreadable = None;
        for group in self.shared.groups().into_values() {
            let mut group = self.shared.handle(group).lock().await;
            if let Err(error) = group.current().await
                && !matches!(error, Error::VolumeGroupMissing(_))
            {
                unreadable = Some(error);
            }
        }
        match (self.search_cached_groups(), unreadable) {
            (Ok(Some(group)), _) => Ok(Some(group)),
            (Err(error), _) | (Ok(None), Some(error)) => Err(error),
            (Ok(None), None) => {
                let (found, others) = self.search_other_groups().await?;
                if found.is_none() {
                    check_former_groups(self.shared, &others)?;
                }
                Ok(found)
            }
        }
    }

    /// Searches the cached reports of all tracked groups for the volume and returns its group.
    pub(super) fn search_cached_groups(&self) -> Result<Option<Arc<Group>>, Error> {
        let classes = self.shared.classes();
        let mut found = Vec::new();
        let mut missing = None;
        for group in self.shared.groups().into_values() {
            match group.try_cached() {
                Ok(known) => {
                    if let Some(volume) = known.volume(self.name.as_str())
                        && matches_request(&classes, &known, volume, self.requested)?
                    {
                        found.push(group);
                    }
                }
                Err(error @ Error::VolumeGroupUnreadable { .. }) => missing = Some(error),
                Err(error) if group.lost_volume(self.name.as_str()) => missing = Some(error),
                Err(_) => {}
            }
        }
        if found.len() > 1 {
            let vgs = found.iter().map(|group| group.name.to_string()).collect();
            return Err(Error::Ambiguous { name: self.name.clone(), vgs });
        }
        match (found.pop(), missing) {
            (Some(group), _) => Ok(Some(group)),
            (None, Some(missing)) => Err(missing),
            (None, None) => Ok(None),
        }
    }

    /// Asks LVM for all groups that are not tracked, searches them for the volume, and tracks its group from then on.
    /// Returns it, and the groups without the volume. A group that cannot be read proves nothing.
    pub(super) async fn search_other_groups(&self) -> Result<(Option<Arc<Group>>, Vec<VolumeGroup>), Error> {
        let tracked: Vec<_> = self.shared.groups().into_keys().collect();
        let (mut others, mut unreadable) = (Vec::new(), None);
        for group in self.shared.reader().volume_groups_except(&tracked).await? {
            let group = match group {
                Ok(group) => group,
                // It may have been this machine's, which lost its identity
                Err(lvm::Error::OtherMachine { group, .. }) if group.volume(self.name.as_str()).is_none() => continue,
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            if let Some(volume) = group.volume(self.name.as_str())
                && matches_request(&self.shared.classes(), &group, volume, self.requested)?
            {
                let vg = group.name.clone();
                track_group(self.shared, group);
                return Ok((Some(self.shared.group(&vg)?), others));
            }
            others.push(group);
        }
        unreadable.map_or(Ok((None, others)), |error| Err(error.into()))
    }
}

/// Runs a change of a volume under the lock of its group: where its class has volumes, or else where the search finds
/// it. When it is found nowhere, the error is that of the first place, so that [`Error::VolumeNotFound`] is a proof for
/// the whole machine.
pub(super) async fn change_volume<R, T, F, C>(
    shared: &Arc<Shared<R>>,
    class: &str,
    name: &LvName,
    change: C,
) -> Result<T, Error>
where
    R: Host,
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
    C: FnOnce(LockedGroup<R>, Scope) -> F + Clone + Send + 'static,
{
    let search = Search::new(shared, class, name);
    let in_class = match shared.group_of_class(class) {
        Ok((group, class)) => {
            let change = change.clone();
            let change = |group| change(group, Scope::Class(class));
            shared.handle(group).with_idle_volume(name, change).await
        }
        Err(error) => Err(error),
    };
    match in_class {
        Err(error) if may_be_elsewhere(&error) => match search.search_machine().await? {
            Some(group) => {
                let vg = &group.name;
                tracing::info!(%vg, %name, class, "the volume is not where its device class has volumes now");
                let scope = Scope::Machine(search.requested);
                let change = |group| change(group, scope);
                shared.handle(group).with_idle_volume(name, change).await
            }
            None => Err(error),
        },
        in_class => in_class,
    }
}

/// Refuses to create a volume that exists already in another group: it was created before its class had another group,
/// and the client never got the answer. And one that is in quarantine in any group, with its data.
pub(super) fn check_not_created_elsewhere<R: Host>(
    shared: &Shared<R>,
    own: &Group,
    name: &LvName,
) -> Result<(), Error> {
    if !lvm::is_uuid(name.as_str()) {
        return Ok(());
    }
    let quarantined = tags::quarantine_name(name.as_str())?;
    for group in shared.groups().values() {
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
