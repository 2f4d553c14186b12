//! Volumes whose object is gone: keeps them under another name, gives them to another object, and removes those that
//! were kept long enough. Whether an object is gone is the client's to prove; here is proven which volume it is.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, Tag, TagChanges, VolumeGroup};
use lvmd_config::{DeviceClass, tags};

use super::preconditions::check_no_missing_pvs;
use super::remove::Removal;
use super::scope::Scope;
use super::state::LockedGroup;
use crate::error::Error;

/// A volume to give to another object.
#[derive(Clone, Debug)]
pub struct AdoptVolume {
    /// Device class that it must be in.
    pub device_class: String,
    /// Its name.
    pub name: LvName,
    /// Its name from then on, the UID of the object.
    pub new_name: LvName,
    /// The size in bytes that it must have.
    pub bytes: u64,
    /// Tags that it gets. They take the place of those with the same keys.
    pub tags: Vec<Tag>,
}

/// Renames and tags the volume of an object that is gone. Fails while a process has it open.
pub(super) async fn quarantine_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    scope: &Scope,
    name: &LvName,
    at: i64,
) -> Result<(), Error> {
    let known = group.current().await?;
    let (volume, _) = scope.find(&group.shared().classes(), &known, name)?;
    let not_allowed = |why: &str| Err(Error::NotAllowed(FullName::new(&known.name, name), why.to_owned()));
    if !tags::is_managed(volume) || !lvm::is_uuid(&volume.name) {
        return not_allowed("was not made by lvmd, which therefore leaves it as it is");
    }
    if tags::is_hidden(volume) {
        return not_allowed("is being made or wiped");
    }
    let kept = tags::quarantine_name(name.as_str())?;
    rename_unused(group, &known, volume, &[tags::quarantine_tag(at)?], &[], &kept).await
}

/// Gives a volume, in quarantine or not, to another object: its name and its tags.
pub(super) async fn adopt_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    scope: &Scope,
    wanted: &AdoptVolume,
) -> Result<LogicalVolume, Error> {
    let known = group.current().await?;
    let (volume, owner) = scope.find(&group.shared().classes(), &known, &wanted.name)?;
    if let Some(why) = find_mismatch(wanted, scope, owner.as_deref(), volume) {
        return Err(Error::NotAllowed(FullName::new(&known.name, &wanted.name), why));
    }
    let mut add = wanted.tags.clone();
    add.push(tags::MANAGED.parse()?);
    let remove = replaced_tags(volume, &add);
    rename_unused(group, &known, volume, &add, &remove, &wanted.new_name).await?;
    let adopted = group.created_volume(&wanted.new_name)?;
    group.ensure_active(&adopted).await
}

/// Removes a volume that was put into quarantine at this time, as its class removes volumes.
pub(super) async fn remove_quarantined_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    scope: &Scope,
    requested: Option<&DeviceClass>,
    name: &LvName,
    at: i64,
) -> Result<(), Error> {
    let known = group.current().await?;
    let (volume, owner) = scope.find(&group.shared().classes(), &known, name)?;
    if !tags::is_quarantined_at(volume, at) {
        let why = "was not put into quarantine at this time, and stays".to_owned();
        return Err(Error::NotAllowed(FullName::new(&known.name, name), why));
    }
    let removal = Removal::of(scope, requested, owner, volume).if_tagged(tags::quarantine_tag(at)?);
    removal.run(group, &known, volume, name).await
}

/// Gives a volume that no process has open another name and other tags.
async fn rename_unused<R: Host>(
    group: &mut LockedGroup<R>,
    known: &Arc<VolumeGroup>,
    volume: &LogicalVolume,
    add: &[Tag],
    remove: &[Tag],
    new: &LvName,
) -> Result<(), Error> {
    check_no_missing_pvs(known)?;
    let name: LvName = volume.name.parse()?;
    if known.volume(new.as_str()).is_some() {
        let why = format!("cannot be renamed: there is a volume {new} already");
        return Err(Error::NotAllowed(FullName::new(&known.name, &name), why));
    }
    if group.is_open(known, volume).await? {
        return Err(Error::InUse(FullName::new(&known.name, &name)));
    }
    let tags = TagChanges { add, remove };
    let renamed = group.lvm().rename_with_tags(&known.name, &name, &volume.uuid, tags, new).await;
    Ok(group.store_outcome(renamed)?)
}

/// Returns the reason why a volume is not the one that an object is to get.
fn find_mismatch(
    wanted: &AdoptVolume,
    scope: &Scope,
    owner: Option<&DeviceClass>,
    volume: &LogicalVolume,
) -> Option<String> {
    if !matches!(scope, Scope::Class(_)) || owner.is_none() {
        return Some(format!("is not where device class {} has its volumes", wanted.device_class));
    }
    if tags::is_hidden(volume) {
        return Some("is being made or wiped".to_owned());
    }
    if !volume.attr.is_writable() {
        return Some("is read-only, as snapshots are, and no volume can be made of it".to_owned());
    }
    (volume.visible_size() != wanted.bytes)
        .then(|| format!("has {} bytes, and {} are asked for", volume.visible_size(), wanted.bytes))
}

/// Returns the tags of a volume whose place others take: those with the same keys, and the time of the quarantine.
fn replaced_tags(volume: &LogicalVolume, new: &[Tag]) -> Vec<Tag> {
    let key = |tag: &str| tag.split('=').next().unwrap_or_default().to_owned();
    let has_key = |tag: &str| new.iter().any(|new| key(new.as_str()) == key(tag));
    let is_new = |tag: &str| new.iter().any(|new| new.as_str() == tag);
    let tags = volume.tags.iter().map(|tag| &**tag).filter(|tag| !is_new(tag));
    tags.filter(|tag| has_key(tag) || tags::is_quarantine_tag(tag)).filter_map(|tag| tag.parse().ok()).collect()
}
