//! Creates volumes of concurrent requests together. LVM writes the metadata for each of them, but one command removes
//! their tags and one report serves all.
//!
//! Each volume has its own making tag until LVM has created it. The caller gets the volume only after a report shows it
//! without the tag. A failure of the batch fails no request: the volume is then created alone, which first removes its
//! remains.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, NewVolume, Tag, VgName, VolumeGroup};
use lvmd_config::tags::{self, InstanceId};
use tokio::sync::oneshot;

use super::change_queue::MOST_OTHERS;
use super::creation::Creation;
use super::state::LockedGroup;

/// The volumes that are created together.
pub(super) struct Batch {
    volumes: Vec<Planned>,
}

/// A volume of a batch.
struct Planned {
    creation: Arc<Creation>,
    parameters: Parameters,
    /// Receives the volume; `None` for that of the caller.
    answer: Option<oneshot::Sender<LogicalVolume>>,
}

/// The parameters of `lvcreate` in addition to the name.
struct Parameters {
    bytes: u64,
    making: Tag,
    tags: Vec<Tag>,
}

/// The volumes that a batch has so far.
#[derive(Default)]
struct Taken {
    names: Vec<LvName>,
    bytes: u64,
}

impl Planned {
    fn as_new_volume<'a>(&'a self, vg: &'a VgName) -> (NewVolume<'a>, &'a Tag) {
        let Parameters { bytes, making, tags } = &self.parameters;
        let name = &self.creation.wanted.name;
        (NewVolume { vg, pool: None, name, bytes: *bytes, tags, striping: None, options: &[] }, making)
    }
}

impl Batch {
    /// Plans the creation of a volume together with others that wait for the same lock. `None` if none of them can be
    /// created with it. `known` is the present state of the group.
    pub(super) fn plan<R: Host>(group: &LockedGroup<R>, creation: &Arc<Creation>, known: &VolumeGroup) -> Option<Self> {
        let mut taken = Taken::default();
        let instance = &group.shared().instance;
        let own = taken.plan(instance, creation, known)?;
        let others = group.creations.take(MOST_OTHERS, |other| taken.plan(instance, other, known));
        if others.is_empty() {
            return None;
        }
        let others = others.into_iter().map(|(waiting, parameters)| Planned {
            creation: waiting.change,
            parameters,
            answer: Some(waiting.answer),
        });
        let own = Planned { creation: Arc::clone(creation), parameters: own, answer: None };
        Some(Self { volumes: std::iter::once(own).chain(others).collect() })
    }

    /// Creates the volumes and answers those who wait for them. Returns the volume of the caller; `None` if it has to
    /// be created alone.
    pub(super) async fn create<R: Host>(self, group: &mut LockedGroup<R>) -> Option<LogicalVolume> {
        let vg = group.name.clone();
        let volumes: Vec<_> = self.volumes.iter().map(|planned| planned.as_new_volume(&vg)).collect();
        tracing::debug!(%vg, volumes = volumes.len(), "creating volumes together");
        let created = group.lvm().create_batch(&vg, &volumes).await;
        if let Err(error) = group.store_outcome(created.changed) {
            tracing::warn!(%vg, %error, "cannot create volumes together; each is created alone");
            return None;
        }
        let mut own = None;
        for (planned, is_ready) in self.volumes.into_iter().zip(created.ready) {
            let name = &planned.creation.wanted.name;
            let volume = if is_ready { group.created_volume(name).ok() } else { None };
            match (planned.answer, volume) {
                // Fails when the caller has gone, who will ask again
                (Some(answer), Some(volume)) => drop(answer.send(volume)),
                (Some(_), None) => {}
                (None, volume) => own = volume,
            }
        }
        own
    }
}

impl Taken {
    /// Adds a volume to the batch. `None`, and nothing is added, if it has to be created alone: it is no plain one,
    /// there is a volume of its name, or there is no space for it in addition to the others.
    fn plan(&mut self, instance: &InstanceId, creation: &Creation, known: &VolumeGroup) -> Option<Parameters> {
        let Creation { wanted, class, .. } = creation;
        if !creation.is_plain() || known.volume(wanted.name.as_str()).is_some() || self.names.contains(&wanted.name) {
            return None;
        }
        let all_bytes = wanted.bytes.checked_next_multiple_of(known.extent_size)?.checked_add(self.bytes)?;
        let all_bytes = creation.check_space(known, all_bytes).ok()?;
        let making = instance.new_making_tag().ok()?;
        let tags = tags::of_new_volume(&wanted.tags, &making, None, class.wipe).ok()?;
        let bytes = all_bytes.checked_sub(self.bytes)?;
        self.bytes = all_bytes;
        self.names.push(wanted.name.clone());
        Some(Parameters { bytes, making, tags })
    }
}
