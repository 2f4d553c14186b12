//! Proves by a small volume whether LVM creates volumes at all, when it has failed to create one that fits, and where
//! only LVM can say. The volume carries the tag of an unfinished one and is removed at once.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, State, VolumeGroup};
use topolvm_runtime::error_chain;

use super::create::check_space;
use super::creation::{CreateVolume, Creation};
use super::group::Group;
use super::refusals::CreationOptions;
use super::state::Engine;
use crate::device_class::{DeviceClass, DeviceClasses};
use crate::error::Error;
use crate::tags;

/// Bytes of the volume: no layout needs more.
const PROBE_BYTES: u64 = 16 << 20;
/// An option that keeps LVM from archiving the metadata: nobody ever needs those of a proof.
const WITHOUT_ARCHIVE: &str = "--config=backup/archive=0";

/// The result of a proof.
enum Proof {
    /// LVM created the volume.
    Accepted,
    /// LVM refused it.
    Refused(String),
    /// There is no space for it, or LVM failed for a reason that says nothing.
    Nothing,
}

impl<R: Host> Engine<R> {
    /// Stores what a creation shows: after a success LVM refuses none with these options, and after a failure that may
    /// have nothing to do with the one request a proof decides. The caller holds the group's lock.
    pub(super) async fn learn_from_creation(
        &self,
        group: &Group,
        creation: &Creation,
        created: Result<LogicalVolume, Error>,
    ) -> Result<LogicalVolume, Error> {
        let options = creation.option_names();
        match created {
            Ok(created) => {
                self.note_accepted(group, &options);
                Ok(created)
            }
            Err(Error::Lvm(error)) if may_be_refusal(&error) => {
                let is_known = group.refusals.reason(&options).is_some();
                let proof =
                    if is_known { Proof::Refused(error_chain(&error)) } else { self.prove(group, creation).await };
                match proof {
                    Proof::Refused(why) => {
                        self.note_refused(group, &options, why.clone());
                        Err(Error::ClassRefused { class: options.class, why })
                    }
                    Proof::Accepted | Proof::Nothing => Err(error.into()),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Proves what is due. The caller holds the group's lock, and the cache of the group is up to date.
    pub(super) async fn prove_refusals(&self, group: &Group) {
        let Some(known) = group.cached() else { return };
        group.refusals.retain(|options| self.creation_of_proof(group, options).is_some());
        for options in group.refusals.due(known.seqno) {
            let Some(creation) = self.creation_of_proof(group, &options) else { continue };
            match self.prove(group, &creation).await {
                Proof::Refused(why) => self.note_refused(group, &options, why),
                // Without space there is nothing to publish, and the next creation decides
                Proof::Accepted | Proof::Nothing => self.note_accepted(group, &options),
            }
        }
    }

    fn note_accepted(&self, group: &Group, options: &CreationOptions) {
        if group.refusals.note_accepted(options) {
            tracing::info!(vg = %group.name, class = options.class, "LVM creates volumes in the device class");
            self.publish();
        }
    }

    fn note_refused(&self, group: &Group, options: &CreationOptions, why: String) {
        if group.refusals.reason(options).is_none() {
            let CreationOptions { class, option_class } = options;
            tracing::error!(
                vg = %group.name, class, option_class, error = why,
                "LVM refuses new volumes in the device class, whose capacity is 0 until it creates one"
            );
        }
        let seqno = group.cached().map_or(0, |known| known.seqno);
        group.refusals.note_refused(options.clone(), why, seqno);
        self.publish();
    }

    /// Returns the creation of a small volume; `None` if the configuration does not have the options any more.
    pub(super) fn creation_of_proof(&self, group: &Group, options: &CreationOptions) -> Option<Creation> {
        let classes = self.classes();
        let class = classes.get(&options.class).filter(|class| class.volume_group == group.name)?;
        let option_class = match options.option_class.as_str() {
            "" => None,
            name => Some(Arc::clone(classes.option_class(name)?)),
        };
        let wanted = CreateVolume {
            name: tags::probe_name().ok()?,
            device_class: options.class.clone(),
            option_class: options.option_class.clone(),
            bytes: PROBE_BYTES,
            tags: Vec::new(),
        };
        Some(Creation { wanted, class: Arc::clone(class), option_class })
    }

    /// Creates a small volume as `creation` would be, and removes it. A process that stops proves nothing any more.
    async fn prove(&self, group: &Group, creation: &Creation) -> Proof {
        if self.inner.shutdown.is_cancelled() {
            return Proof::Nothing;
        }
        match self.create_and_remove(group, creation).await {
            Ok(true) => Proof::Accepted,
            Err(Error::Lvm(error)) if may_be_refusal(&error) => Proof::Refused(error_chain(&error)),
            Ok(false) | Err(_) => Proof::Nothing,
        }
    }

    /// Returns whether there was space for the volume.
    async fn create_and_remove(&self, group: &Group, creation: &Creation) -> Result<bool, Error> {
        let class = &creation.class;
        let name = tags::probe_name()?;
        let known = self.current(group).await?;
        if let Some(left) = known.volume(name.as_str()).filter(|left| self.inner.instance.is_creating(left)) {
            self.remove_unfinished(group, &known, left).await?;
        }
        let known = group.try_cached()?;
        let Ok(bytes) = check_space(class, creation.layout(), &known, PROBE_BYTES) else { return Ok(false) };
        let making = self.inner.instance.new_making_tag()?;
        let mut options = creation.options().to_vec();
        options.push(WITHOUT_ARCHIVE.to_owned());
        let tags = tags::of_new_volume(&[], &making, None, None)?;
        let volume = creation.new_volume(&group.name, &name, bytes, &tags, &options);
        let created = self.store_outcome(group, self.inner.lvm.create_unfinished(&volume).await);
        if created.is_ok()
            && let Some(pool) = volume.pool
            && let Some(probe) = group.cached().and_then(|known| known.volume(name.as_str()).cloned())
        {
            self.check_thin_volume_is_empty(group, pool, &name, probe).await?;
        }
        self.remove_probe(group, &name).await;
        created?;
        Ok(true)
    }

    async fn remove_probe(&self, group: &Group, name: &LvName) {
        let Some(known) = group.cached() else { return };
        let Some(probe) = known.volume(name.as_str()).filter(|probe| self.inner.instance.is_creating(probe)) else {
            return;
        };
        let (vg, making) = (&group.name, tags::making_tag(probe));
        let removed = self.inner.lvm.remove_if(vg, name, &probe.uuid, making).await;
        if let Err(error) = self.store_outcome(group, removed) {
            let error = error_chain(&error);
            tracing::warn!(%vg, %name, error, "cannot remove the volume of a proof; it is tried again");
        }
    }
}

/// Marks the classes of a group of which only LVM can say whether it creates volumes in them.
pub(super) fn expect_proofs(group: &Group, classes: &DeviceClasses) {
    let Some(known) = group.cached() else { return };
    let of_group = classes.iter().filter(|class| class.volume_group == group.name);
    for class in of_group.filter(|class| needs_proof(class, &known)) {
        group.refusals.expect_proof(CreationOptions::of_class(&class.name));
        group.refresh_needed.notify_one();
    }
}

/// Returns whether LVM's answer may have nothing to do with the one request. A thin device without a volume is about
/// the next device of the pool, which a proof must not get.
fn may_be_refusal(error: &lvm::Error) -> bool {
    matches!(error, lvm::Error::Exit { .. } | lvm::Error::NoSpace(_))
}

/// Returns whether only LVM can say whether it creates volumes in a class: because of its options, or because its thin
/// pool is not active, which LVM activates first if it can.
fn needs_proof(class: &DeviceClass, group: &VolumeGroup) -> bool {
    let pool = class.thin_pool.as_ref().and_then(|pool| pool.find(group));
    class.has_unproven_options || pool.is_some_and(|pool| pool.attr.state() == State::Inactive)
}
