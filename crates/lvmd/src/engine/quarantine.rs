//! Volumes whose object is gone: keeps them under another name, gives them to another object, and removes those that
//! were kept long enough. Whether an object is gone is the client's to prove; here is proven which volume it is.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, Tag, TagChanges, VolumeGroup};

use super::group::Group;
use super::locate::Scope;
use super::preconditions::check_no_missing_pvs;
use super::remove::Removal;
use super::state::Engine;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

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

impl<R: Host> Engine<R> {
    /// Renames and tags the volume of an object that is gone. Fails while somebody has it open.
    pub async fn quarantine(&self, class: &str, name: LvName, at: i64) -> Result<(), Error> {
        let requested = name.clone();
        self.change_volume(class, &requested, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            let known = engine.current(&group).await?;
            let (volume, _) = engine.find_in_scope(&scope, &known, &name)?;
            let not_allowed = |why: &str| Err(Error::NotAllowed(FullName::new(&group.name, &name), why.to_owned()));
            if !tags::is_managed(volume) || !lvm::is_uuid(&volume.name) {
                return not_allowed("was not made by lvmd, which therefore leaves it as it is");
            }
            if tags::is_hidden(volume) {
                return not_allowed("is being made or wiped");
            }
            let kept = tags::quarantine_name(name.as_str())?;
            engine.rename_unused(&group, &known, volume, &[tags::quarantine_tag(at)?], &[], &kept).await
        })
        .await
    }

    /// Gives a volume, in quarantine or not, to another object: its name and its tags. Returns it also when it was
    /// given to this object before.
    pub async fn adopt(&self, wanted: AdoptVolume) -> Result<LogicalVolume, Error> {
        if let Some(volume) = self.find(&wanted.device_class, &wanted.new_name).await? {
            if tags::is_hidden(&volume) {
                let class = self.class(&wanted.device_class)?;
                return Err(Error::BeingMade(FullName::new(&class.volume_group, &wanted.new_name)));
            }
            return Ok(volume);
        }
        let (class, name) = (wanted.device_class.clone(), wanted.name.clone());
        let wanted = Arc::new(wanted);
        self.change_volume(&class, &name, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            let known = engine.current(&group).await?;
            let (volume, owner) = engine.find_in_scope(&scope, &known, &wanted.name)?;
            if let Some(why) = find_mismatch(&wanted, &scope, owner.as_deref(), volume) {
                return Err(Error::NotAllowed(FullName::new(&group.name, &wanted.name), why));
            }
            let mut add = wanted.tags.clone();
            add.push(tags::MANAGED.parse()?);
            let remove = replaced_tags(volume, &add);
            engine.rename_unused(&group, &known, volume, &add, &remove, &wanted.new_name).await?;
            engine.ensure_active(&group, &group.created_volume(&wanted.new_name)?).await
        })
        .await
    }

    /// Removes a volume that was put into quarantine at this time, as its class removes volumes.
    pub async fn remove_quarantined(&self, class: &str, name: LvName, at: i64) -> Result<(), Error> {
        let requested_class = self.class(class).ok();
        let requested = name.clone();
        self.change_volume(class, &requested, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            let known = engine.current(&group).await?;
            let (volume, owner) = engine.find_in_scope(&scope, &known, &name)?;
            if !tags::is_quarantined_at(volume, at) {
                let why = "was not put into quarantine at this time, and stays".to_owned();
                return Err(Error::NotAllowed(FullName::new(&group.name, &name), why));
            }
            let removal = Removal::of(&scope, requested_class.as_deref(), owner, volume);
            let removal = removal.if_tagged(tags::quarantine_tag(at)?);
            engine.remove_from_group(&group, &known, volume, &name, &removal).await
        })
        .await
    }

    /// Gives a volume that nobody has open another name and other tags.
    async fn rename_unused(
        &self,
        group: &Group,
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
            return Err(Error::NotAllowed(FullName::new(&group.name, &name), why));
        }
        if self.is_open(group, known, volume).await? {
            return Err(Error::InUse(FullName::new(&group.name, &name)));
        }
        let tags = TagChanges { add, remove };
        let renamed = self.inner.lvm.rename_with_tags(&group.name, &name, &volume.uuid, tags, new).await;
        Ok(self.store_outcome(group, renamed)?)
    }
}

/// Says why a volume is not the one that an object is to get.
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
