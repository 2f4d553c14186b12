//! Removes volumes. A volume of a class that wipes is only renamed and tagged here; it is removed when it has been
//! wiped, see [`super::wiping`].

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, Tag, TagChanges, VolumeGroup, Wipe};
use lvmd_config::{DeviceClass, tags};

use super::preconditions::{check_no_missing_pvs, check_pool_zeroes};
use super::scope::Scope;
use super::state::LockedGroup;
use crate::error::Error;

/// Method of a removal.
pub(super) struct Removal {
    /// The class whose volumes lie where it lies.
    class: Option<Arc<DeviceClass>>,
    wipe: Option<Wipe>,
    /// The tag for which it is removed, if any.
    tag: Option<Tag>,
}

impl Removal {
    /// Decides how a volume is removed.
    pub(super) fn of(
        scope: &Scope,
        requested: Option<&DeviceClass>,
        owner: Option<Arc<DeviceClass>>,
        volume: &LogicalVolume,
    ) -> Self {
        Self { wipe: wipe_method(scope, requested, owner.as_deref(), volume), class: owner, tag: None }
    }

    /// Has LVM remove the volume only if it carries this tag at that moment.
    pub(super) fn if_tagged(self, tag: Tag) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Removes a volume that nothing depends on, or begins to wipe it.
    pub(super) async fn run<R: Host>(
        &self,
        group: &mut LockedGroup<R>,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
    ) -> Result<(), Error> {
        if tags::is_wiping(volume) {
            return rename_for_wiping(group, volume, name, &[]).await;
        }
        // lvremove --force removes them too, without a message.
        let snapshots: Vec<_> = known.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed(FullName::new(&known.name, name), why));
        }
        if let Some(class) = &self.class {
            check_pool_zeroes(class, known)?;
        }
        if let Some(how) = self.wipe.filter(|_| !volume.attr.is_thin()) {
            return start_wiping(group, known, volume, name, how).await;
        }
        let tag = self.tag.as_ref().map(Tag::as_str);
        let removed = group.lvm().remove_if(&known.name, name, &volume.uuid, tag).await;
        Ok(group.store_outcome(removed)?)
    }
}

/// Tags and renames a volume so that the background task wipes it. From then on it does not exist for clients, but its
/// extents count as used.
async fn start_wiping<R: Host>(
    group: &mut LockedGroup<R>,
    known: &Arc<VolumeGroup>,
    volume: &LogicalVolume,
    name: &LvName,
    how: Wipe,
) -> Result<(), Error> {
    check_no_missing_pvs(known)?;
    if volume.origin.is_some() || !volume.attr.is_overwritten_in_place() {
        let why = "is of a kind that cannot be wiped by writing to it; remove it with lvremove".to_owned();
        return Err(Error::NotAllowed(FullName::new(&known.name, name), why));
    }
    if group.is_open(known, volume).await? {
        return Err(Error::InUse(FullName::new(&known.name, name)));
    }
    let tags = group.shared().instance.wiping_tags(how)?;
    rename_for_wiping(group, volume, name, &tags).await
}

/// Tags a volume that is being wiped, and makes its name free. A volume that has the tags already still has its name
/// when a crash came between the two commands that tag and rename it.
pub(super) async fn rename_for_wiping<R: Host>(
    group: &mut LockedGroup<R>,
    volume: &LogicalVolume,
    name: &LvName,
    wiping_tags: &[Tag],
) -> Result<(), Error> {
    let wiping_name = tags::wiping_name(volume)?;
    let tags = TagChanges { add: wiping_tags, remove: &[] };
    let renamed = group.lvm().rename_with_tags(&group.name, name, &volume.uuid, tags, &wiping_name).await;
    Ok(group.store_outcome(renamed)?)
}

/// Decides how a removed volume is wiped; `None` for not at all. Its class decides if the volume lies where that class
/// has its volumes. Elsewhere, and when the class is no longer configured, the volume is wiped if any of these wants
/// that: its class at the time of its creation, the requested class, or the class that has volumes there now.
fn wipe_method(
    scope: &Scope,
    requested: Option<&DeviceClass>,
    owner: Option<&DeviceClass>,
    volume: &LogicalVolume,
) -> Option<Wipe> {
    let wanted = match scope {
        Scope::Class(class) => vec![class.wipe],
        Scope::Machine(_) => vec![
            tags::wipe_at_creation(volume),
            requested.and_then(|class| class.wipe),
            owner.and_then(|class| class.wipe),
        ],
    };
    let wanted: Vec<_> = wanted.into_iter().flatten().collect();
    // Zeroing leaves nothing on any disk.
    if wanted.contains(&Wipe::Zero) { Some(Wipe::Zero) } else { wanted.first().copied() }
}
