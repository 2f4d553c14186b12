//! Creates volumes that were asked for at the same time together. LVM writes the metadata for each of them, but one
//! command takes their tags away and one report serves all.
//!
//! Each volume has a making tag of its own until LVM has created it, and is given to its caller only when a report has
//! shown it without. Whatever goes wrong is no answer: the volume is then created alone, which begins with the removal
//! of what is left of it.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName, NewVolume, Tag, VolumeGroup};
use tokio::sync::oneshot;

use super::change_queue::MOST_OTHERS;
use super::create::check_space;
use super::creation::Creation;
use super::group::Group;
use super::state::Engine;
use crate::tags;

/// A volume of a batch.
pub(super) struct Planned {
    creation: Arc<Creation>,
    parameters: Parameters,
    /// Receives the volume; `None` for that of the caller.
    answer: Option<oneshot::Sender<LogicalVolume>>,
}

/// The parameters of `lvcreate` beside the name.
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
    fn as_new_volume<'a>(&'a self, group: &'a Group) -> (NewVolume<'a>, &'a Tag) {
        let Parameters { bytes, making, tags } = &self.parameters;
        let name = &self.creation.wanted.name;
        (NewVolume { vg: &group.name, pool: None, name, bytes: *bytes, tags, striping: None, options: &[] }, making)
    }
}

impl<R: Host> Engine<R> {
    /// Creates the volumes of a batch and answers those who wait for them. Returns the volume of the caller; `None` if
    /// it has to be created alone. The caller holds the group's lock.
    pub(super) async fn create_batch(&self, group: &Group, batch: Vec<Planned>) -> Option<LogicalVolume> {
        let volumes: Vec<_> = batch.iter().map(|planned| planned.as_new_volume(group)).collect();
        tracing::debug!(vg = %group.name, volumes = volumes.len(), "creating volumes together");
        let created = self.inner.lvm.create_batch(&group.name, &volumes).await;
        if let Err(error) = self.store_outcome(group, created.changed) {
            tracing::warn!(vg = %group.name, %error, "cannot create volumes together; each is created alone");
            return None;
        }
        let mut own = None;
        for (planned, is_ready) in batch.into_iter().zip(created.ready) {
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

    /// Plans the creation of a volume together with others that wait for the same lock. `None` if none of them can be
    /// created with it. `known` is the present state of the group, whose lock the caller holds.
    pub(super) fn plan_batch(
        &self,
        group: &Group,
        creation: &Arc<Creation>,
        known: &VolumeGroup,
    ) -> Option<Vec<Planned>> {
        let mut taken = Taken::default();
        let own = self.plan(creation, known, &mut taken)?;
        let others = group.creations.take(MOST_OTHERS, |other| self.plan(other, known, &mut taken));
        if others.is_empty() {
            return None;
        }
        let others = others.into_iter().map(|(waiting, parameters)| Planned {
            creation: waiting.change,
            parameters,
            answer: Some(waiting.answer),
        });
        let own = Planned { creation: Arc::clone(creation), parameters: own, answer: None };
        Some(std::iter::once(own).chain(others).collect())
    }

    /// Adds a volume to a batch. `None`, and nothing is added, if it has to be created alone: it is no plain one, there
    /// is a volume of its name, or there is no room for it beside the others.
    fn plan(&self, creation: &Creation, known: &VolumeGroup, taken: &mut Taken) -> Option<Parameters> {
        let Creation { wanted, class, .. } = creation;
        if !creation.is_plain() || known.volume(wanted.name.as_str()).is_some() || taken.names.contains(&wanted.name) {
            return None;
        }
        let all_bytes = wanted.bytes.checked_next_multiple_of(known.extent_size)?.checked_add(taken.bytes)?;
        let all_bytes = check_space(class, creation.layout(), known, all_bytes).ok()?;
        let making = self.inner.instance.new_making_tag().ok()?;
        let tags = tags::of_new_volume(&wanted.tags, &making, None, class.wipe).ok()?;
        let bytes = all_bytes.checked_sub(taken.bytes)?;
        taken.bytes = all_bytes;
        taken.names.push(wanted.name.clone());
        Some(Parameters { bytes, making, tags })
    }
}
