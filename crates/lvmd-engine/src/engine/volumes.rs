//! The operations on volumes: each locks the volume group and delegates the work to the value of the request, or
//! answers from the cache. A read runs LVM only if device-mapper cannot list the devices, or if no cached group has the
//! volume.

use std::collections::HashMap;
use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, VolumeGroup};
use lvmd_config::tags;

use super::Engine;
use super::activation::set_device;
use super::create::create_in_group;
use super::creation::{CreateVolume, Creation};
use super::group::Group;
use super::growth::Growth;
use super::preconditions::free_bytes;
use super::quarantine::{AdoptVolume, adopt_in_group, quarantine_in_group, remove_quarantined_in_group};
use super::refresh::lock_and_refresh;
use super::refusals::CreationOptions;
use super::remove::Removal;
use super::resize::Resize;
use super::scope::Scope;
use super::search::{Search, change_volume, check_not_created_elsewhere};
use super::snapshot::{CreateSnapshot, Snapshot};
use super::snapshot_group::snapshot_in_group;
use super::state::{LockedGroup, Shared};
use super::storage_health::class_refusal;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// Creates a volume. Returns an existing volume of this name if it is large enough: the answer to an earlier
    /// request was lost.
    pub async fn create(&self, wanted: CreateVolume) -> Result<LogicalVolume, Error> {
        let creation = Creation::new(&self.shared.classes(), wanted)?;
        let group = self.shared.group(&creation.class.volume_group)?;
        check_not_created_elsewhere(&self.shared, &group, &creation.wanted.name)?;
        let place = group.creations.push(creation);
        let create = async move |mut group: LockedGroup<R>| match place.leave(group.guard()) {
            Some(volume) => Ok(volume),
            None => create_in_group(&mut group, &place.change).await,
        };
        self.shared.handle(group).with_lock(create).await
    }

    /// Grows a volume to at least this many bytes and returns it. A volume never gets smaller: one that is large enough
    /// stays as it is, and is activated if it has no device.
    pub async fn resize(&self, class: &str, name: LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let requested = name.clone();
        let place = self.shared.group_of_class(class).ok().map(|(group, class)| {
            let growth = Growth { class, name: name.clone(), bytes };
            Arc::new(group.growths.push(growth))
        });
        let resize = async move |mut group: LockedGroup<R>, scope: Scope| match place
            .and_then(|place| place.leave(group.guard()))
        {
            Some(volume) => Ok(volume),
            None => Resize { scope, name, bytes }.run(&mut group).await,
        };
        change_volume(&self.shared, class, &requested, resize).await
    }

    /// Creates a snapshot. Returns an existing one if it is the wanted one: the answer to an earlier request was lost.
    pub async fn snapshot(&self, wanted: CreateSnapshot) -> Result<LogicalVolume, Error> {
        let (class, source) = (wanted.device_class.clone(), wanted.source.clone());
        let create = async move |mut group: LockedGroup<R>, scope: Scope| {
            let snapshot = Snapshot { scope, wanted };
            snapshot.run(&mut group).await
        };
        change_volume(&self.shared, &class, &source, create).await
    }

    /// Creates read-only snapshots of volumes of one volume group with their contents of one moment, all or none.
    /// Returns existing ones if all of them are the wanted ones. Without any it does nothing.
    pub async fn snapshot_group(&self, wanted: Vec<CreateSnapshot>) -> Result<Vec<LogicalVolume>, Error> {
        let Some(first) = wanted.first() else { return Ok(Vec::new()) };
        let (class, source) = (first.device_class.clone(), first.source.clone());
        let create = async move |mut group: LockedGroup<R>, _: Scope| snapshot_in_group(&mut group, wanted).await;
        change_volume(&self.shared, &class, &source, create).await
    }

    /// Removes a volume. [`Error::VolumeNotFound`] means that every volume group of the machine was read and the volume
    /// is in none of them.
    pub async fn remove(&self, class: &str, name: LvName) -> Result<(), Error> {
        let requested_class = self.shared.class(class).ok();
        let requested = name.clone();
        let remove = async move |mut group: LockedGroup<R>, scope: Scope| {
            let known = group.current().await?;
            let (volume, owner) = scope.find(&group.shared().classes(), &known, &name)?;
            let removal = Removal::of(&scope, requested_class.as_deref(), owner, volume);
            removal.run(&mut group, &known, volume, &name).await
        };
        change_volume(&self.shared, class, &requested, remove).await
    }

    /// Renames and tags the volume of an object that is gone. Fails while a process has it open.
    pub async fn quarantine(&self, class: &str, name: LvName, at: i64) -> Result<(), Error> {
        let requested = name.clone();
        let quarantine = async move |mut group: LockedGroup<R>, scope: Scope| {
            quarantine_in_group(&mut group, &scope, &name, at).await
        };
        change_volume(&self.shared, class, &requested, quarantine).await
    }

    /// Gives a volume, in quarantine or not, to another object: its name and its tags. Returns it also when it was
    /// given to this object before.
    pub async fn adopt(&self, wanted: AdoptVolume) -> Result<LogicalVolume, Error> {
        if let Some(volume) = self.find(&wanted.device_class, &wanted.new_name).await? {
            if tags::is_hidden(&volume) {
                let class = self.shared.class(&wanted.device_class)?;
                return Err(Error::BeingMade(FullName::new(&class.volume_group, &wanted.new_name)));
            }
            return Ok(volume);
        }
        let (class, name) = (wanted.device_class.clone(), wanted.name.clone());
        let adopt =
            async move |mut group: LockedGroup<R>, scope: Scope| adopt_in_group(&mut group, &scope, &wanted).await;
        change_volume(&self.shared, &class, &name, adopt).await
    }

    /// Removes a volume that was put into quarantine at this time, as its class removes volumes.
    pub async fn remove_quarantined(&self, class: &str, name: LvName, at: i64) -> Result<(), Error> {
        let requested_class = self.shared.class(class).ok();
        let requested = name.clone();
        let remove = async move |mut group: LockedGroup<R>, scope: Scope| {
            remove_quarantined_in_group(&mut group, &scope, requested_class.as_deref(), &name, at).await
        };
        change_volume(&self.shared, class, &requested, remove).await
    }

    /// Lists the volumes of a class, also those that lvmd did not create: everything in its thin pool, or everything in
    /// its volume group that is not part of a thin pool.
    pub async fn list(&self, class: &str) -> Result<Vec<LogicalVolume>, Error> {
        let (group, class) = self.shared.group_of_class(class)?;
        let devices = self.shared.mapped_devices(&group).await;
        if devices.is_none() {
            lock_and_refresh(&self.shared.handle(Arc::clone(&group))).await?;
        }
        let known = group.try_cached()?;
        // A missing thin pool is an error, not an empty list.
        free_bytes(&class, &known)?;
        let is_listed = |volume: &&LogicalVolume| class.owns(volume) && !tags::is_hidden(volume);
        let mut volumes: Vec<_> = known.volumes.iter().filter(is_listed).cloned().collect();
        for volume in &mut volumes {
            set_device(volume, &known.name, devices.as_ref());
        }
        Ok(volumes)
    }

    /// Returns the bytes that the thin ones of these volumes of a class use in their pool, by name. Volumes that are
    /// not active are left out, and all while device-mapper does not answer.
    pub async fn thin_usage(&self, class: &str, volumes: &[LogicalVolume]) -> HashMap<Box<str>, u64> {
        let thin: Vec<_> =
            volumes.iter().filter(|volume| volume.attr.is_thin() && volume.device.is_some()).cloned().collect();
        let Ok((group, _)) = self.shared.group_of_class(class) else { return HashMap::new() };
        let Some(known) = group.cached().filter(|_| !thin.is_empty()) else { return HashMap::new() };
        group.thin_usage(&self.shared.devices(), known, thin).await.unwrap_or_default()
    }

    /// Returns a volume by class and name: from the place of the class, from another cached group, or from any other
    /// group of the machine, for which LVM is asked.
    pub async fn find(&self, class: &str, name: &LvName) -> Result<Option<LogicalVolume>, Error> {
        let shared = &self.shared;
        let in_class = match shared.group_of_class(class) {
            Ok((group, class)) => cached_volume(shared, &group, name).await.and_then(|(known, volume)| {
                // A missing thin pool is an error, not an empty list.
                free_bytes(&class, &known)?;
                Ok(volume.filter(|volume| class.owns(volume)))
            }),
            Err(error) => Err(error),
        };
        if let Ok(Some(volume)) = in_class {
            return Ok(Some(volume));
        }
        let search = Search::new(shared, class, name);
        let elsewhere = match search.search_cached_groups() {
            Ok(None) => search.search_other_groups().await.map(|(group, _)| group),
            found => found,
        };
        match (elsewhere, in_class) {
            (Ok(Some(group)), _) => Ok(cached_volume(shared, &group, name).await?.1),
            // Of several groups that cannot be read, that of the class is where the volume most likely is
            (Err(_), Err(error @ Error::VolumeGroupUnreadable { .. })) | (Err(error), _) => Err(error),
            (Ok(None), in_class) => in_class,
        }
    }

    /// Returns the free bytes of a device class, after the spare; 0 while LVM creates no volumes in it.
    pub fn free_bytes(&self, class: &str) -> Result<u64, Error> {
        let (group, class) = self.shared.group_of_class(class)?;
        let bytes = free_bytes(&class, &*group.try_cached()?)?;
        let is_withheld = group.usable().is_none()
            || class_refusal(&class, &group).is_some()
            || group.refusals.withholds(&CreationOptions::of_class(&class.name));
        Ok(if is_withheld { 0 } else { bytes })
    }
}

async fn cached_volume<R: Host>(
    shared: &Arc<Shared<R>>,
    group: &Arc<Group>,
    name: &LvName,
) -> Result<(Arc<VolumeGroup>, Option<LogicalVolume>), Error> {
    let devices = shared.mapped_devices(group).await;
    if devices.is_none() {
        lock_and_refresh(&shared.handle(Arc::clone(group))).await?;
    }
    let known = group.try_cached()?;
    let mut volume = known.volume(name.as_str()).filter(|volume| !tags::is_hidden(volume)).cloned();
    if let Some(volume) = &mut volume {
        set_device(volume, &known.name, devices.as_ref());
    }
    Ok((known, volume))
}
