//! Removes volumes. A volume of a class that wipes is only renamed and tagged here; it is removed when it has been
//! wiped, see [`super::wiping`].

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, Tag, TagChanges, VolumeGroup, Wipe};

use super::group::Group;
use super::locate::Scope;
use super::preconditions::{check_no_missing_pvs, check_pool_zeroes};
use super::state::Engine;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

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
}

impl<R: Host> Engine<R> {
    /// Removes a volume. [`Error::VolumeNotFound`] means that every volume group of the machine was read and the volume
    /// is in none of them.
    pub async fn remove(&self, class: &str, name: LvName) -> Result<(), Error> {
        let requested_class = self.class(class).ok();
        let requested = name.clone();
        self.change_volume(class, &requested, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            let known = engine.current(&group).await?;
            let (volume, owner) = engine.find_in_scope(&scope, &known, &name)?;
            let removal = Removal::of(&scope, requested_class.as_deref(), owner, volume);
            engine.remove_from_group(&group, &known, volume, &name, &removal).await
        })
        .await
    }

    /// Removes a volume that nothing depends on, or begins to wipe it.
    pub(super) async fn remove_from_group(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        removal: &Removal,
    ) -> Result<(), Error> {
        if tags::is_wiping(volume) {
            return self.rename_for_wiping(group, volume, name, &[]).await;
        }
        // lvremove --force takes them along without a word.
        let snapshots: Vec<_> = known.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed(FullName::new(&group.name, name), why));
        }
        if let Some(class) = &removal.class {
            check_pool_zeroes(class, known)?;
        }
        if let Some(how) = removal.wipe.filter(|_| !volume.attr.is_thin()) {
            return self.start_wiping(group, known, volume, name, how).await;
        }
        let tag = removal.tag.as_ref().map(Tag::as_str);
        Ok(self.store_outcome(group, self.inner.lvm.remove_if(&group.name, name, &volume.uuid, tag).await)?)
    }

    /// Tags and renames a volume so that the background task wipes it. From then on clients are told that it is gone,
    /// but its extents count as used.
    async fn start_wiping(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
        name: &LvName,
        how: Wipe,
    ) -> Result<(), Error> {
        check_no_missing_pvs(known)?;
        if volume.origin.is_some() || !volume.attr.is_overwritten_in_place() {
            let why = "is of a kind that cannot be wiped by writing to it; remove it with lvremove".to_owned();
            return Err(Error::NotAllowed(FullName::new(&group.name, name), why));
        }
        if self.is_open(group, known, volume).await? {
            return Err(Error::InUse(FullName::new(&group.name, name)));
        }
        self.rename_for_wiping(group, volume, name, &self.inner.instance.wiping_tags(how)?).await
    }

    /// Tags a volume that is being wiped, and makes its name free. A volume that has the tags already still has its
    /// name when a crash came between the two commands that tag and rename it.
    pub(super) async fn rename_for_wiping(
        &self,
        group: &Group,
        volume: &LogicalVolume,
        name: &LvName,
        wiping_tags: &[Tag],
    ) -> Result<(), Error> {
        let wiping_name = tags::wiping_name(volume)?;
        let tags = TagChanges { add: wiping_tags, remove: &[] };
        let renamed = self.inner.lvm.rename_with_tags(&group.name, name, &volume.uuid, tags, &wiping_name).await;
        Ok(self.store_outcome(group, renamed)?)
    }

    /// Returns whether somebody has the device of a volume open.
    pub(super) async fn is_open(
        &self,
        group: &Group,
        known: &Arc<VolumeGroup>,
        volume: &LogicalVolume,
    ) -> Result<bool, Error> {
        if let Ok(status) = group.device_status(&self.devices(), known, volume).await {
            return Ok(status.is_some_and(|status| status.open_count > 0));
        }
        // LVM can tell where device-mapper cannot be asked: it runs in the namespaces of the host.
        self.refresh(group).await?;
        let known = group.try_cached()?;
        let now = known.volume_of_uuid(&volume.uuid);
        Ok(now.is_none_or(|volume| volume.attr.is_open()))
    }
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
