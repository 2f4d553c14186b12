//! Grows volumes that are to grow at the same time together: LVM writes the metadata for each, and one report serves
//! all.
//!
//! A volume is given to its caller only when the report shows it as large as it is to be. Whatever goes wrong is no
//! answer: the volume is then grown alone.

use lvm::{Host, LogicalVolume, LvName, VolumeGroup};
use tokio::sync::oneshot;

use super::change_queue::MOST_OTHERS;
use super::group::Group;
use super::growth::Growth;
use super::locate::Scope;
use super::resize::check_space;
use super::state::Engine;
use crate::tags;

/// A volume of a batch.
pub(super) struct Planned {
    name: LvName,
    /// Size in bytes that it is to have.
    size: u64,
    /// Receives the volume; `None` for that of the caller.
    answer: Option<oneshot::Sender<LogicalVolume>>,
}

/// The volumes that a batch has so far, and the bytes by which they grow.
struct Taken {
    names: Vec<LvName>,
    bytes: u64,
}

impl<R: Host> Engine<R> {
    /// Grows the volumes of a batch and answers those who wait for them. Returns the volume of the caller; `None` if it
    /// has to be grown alone. The caller holds the group's lock.
    pub(super) async fn resize_batch(&self, group: &Group, batch: Vec<Planned>) -> Option<LogicalVolume> {
        let volumes: Vec<_> = batch.iter().map(|planned| (&planned.name, planned.size)).collect();
        tracing::debug!(vg = %group.name, volumes = volumes.len(), "growing volumes together");
        let changed = self.inner.lvm.resize_batch(&group.name, &volumes).await;
        if let Err(error) = self.store_outcome(group, changed) {
            tracing::warn!(vg = %group.name, %error, "cannot grow volumes together; each is grown alone");
            return None;
        }
        let mut own = None;
        for Planned { name, size, answer } in batch {
            let grown = group.created_volume(&name).ok().filter(|volume| volume.visible_size() >= size);
            match (answer, grown) {
                // Fails when the caller has gone, who will ask again
                (Some(answer), Some(volume)) => drop(answer.send(volume)),
                (Some(_), None) => {}
                (None, volume) => own = volume,
            }
        }
        own
    }

    /// Plans the growth of a volume to so many bytes together with others that wait for the same lock. `None` if none
    /// of them can be grown with it. `known` is the present state of the group, whose lock the caller holds.
    pub(super) fn plan_growths(
        &self,
        group: &Group,
        name: &LvName,
        size: u64,
        known: &VolumeGroup,
    ) -> Option<Vec<Planned>> {
        let volume = known.volume(name.as_str()).filter(|volume| is_plain(volume))?;
        let mut taken = Taken { names: vec![name.clone()], bytes: size.checked_sub(volume.visible_size())? };
        let others = group.growths.take(MOST_OTHERS, |other| self.plan_growth(other, known, &mut taken));
        if others.is_empty() {
            return None;
        }
        let own = Planned { name: name.clone(), size, answer: None };
        let others = others.into_iter().map(|(waiting, size)| Planned {
            name: waiting.change.name.clone(),
            size,
            answer: Some(waiting.answer),
        });
        Some(std::iter::once(own).chain(others).collect())
    }

    /// Adds a volume to a batch and returns the size in bytes that it is to have. `None`, and nothing is added, if it
    /// has to be grown alone: it is no plain one, or there is no room for it beside the others.
    fn plan_growth(&self, growth: &Growth, known: &VolumeGroup, taken: &mut Taken) -> Option<u64> {
        let scope = Scope::Class(growth.class.clone());
        let (volume, class) = self.find_in_scope(&scope, known, &growth.name).ok()?;
        let can_grow = is_plain(volume) && !tags::is_hidden(volume) && growth.bytes > volume.visible_size();
        if !can_grow || taken.names.contains(&growth.name) {
            return None;
        }
        // One growth by as much as all of them takes as much room
        let wanted = growth.bytes.checked_next_multiple_of(known.extent_size)?.checked_add(taken.bytes)?;
        let size = check_space(volume, class.as_deref(), known, wanted).ok()?.checked_sub(taken.bytes)?;
        taken.bytes = taken.bytes.checked_add(size.checked_sub(volume.visible_size())?)?;
        taken.names.push(growth.name.clone());
        Some(size)
    }
}

/// Returns whether a volume is thick and linear, and no copy-on-write snapshot.
fn is_plain(volume: &LogicalVolume) -> bool {
    volume.segment.is_none() && volume.pool.is_none() && volume.origin.is_none() && !volume.attr.holds_volumes()
}
