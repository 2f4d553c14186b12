//! Grows volumes of concurrent requests together: LVM writes the metadata for each, and one report serves all.
//!
//! The caller gets a volume only after the report shows its requested size. A failure of the batch fails no request:
//! the volume is then grown alone.

use lvm::{Host, LogicalVolume, LvName, VolumeGroup};
use lvmd_config::{DeviceClasses, tags};
use tokio::sync::oneshot;

use super::change_queue::MOST_OTHERS;
use super::growth::{Growth, check_space};
use super::scope::Scope;
use super::state::LockedGroup;

/// The volumes that are grown together.
pub(super) struct Batch {
    volumes: Vec<Planned>,
}

/// A volume of a batch.
struct Planned {
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

impl Batch {
    /// Plans the growth of a volume to so many bytes together with others that wait for the same lock. `None` if none
    /// of them can be grown with it. `known` is the present state of the group.
    pub(super) fn plan<R: Host>(group: &LockedGroup<R>, name: &LvName, size: u64, known: &VolumeGroup) -> Option<Self> {
        let volume = known.volume(name.as_str()).filter(|volume| is_plain(volume))?;
        let mut taken = Taken { names: vec![name.clone()], bytes: size.checked_sub(volume.visible_size())? };
        let classes = group.shared().classes();
        let others = group.growths.take(MOST_OTHERS, |other| taken.plan(&classes, other, known));
        if others.is_empty() {
            return None;
        }
        let own = Planned { name: name.clone(), size, answer: None };
        let others = others.into_iter().map(|(waiting, size)| Planned {
            name: waiting.change.name.clone(),
            size,
            answer: Some(waiting.answer),
        });
        Some(Self { volumes: std::iter::once(own).chain(others).collect() })
    }

    /// Grows the volumes and answers those who wait for them. Returns the volume of the caller; `None` if it has to be
    /// grown alone.
    pub(super) async fn grow<R: Host>(self, group: &mut LockedGroup<R>) -> Option<LogicalVolume> {
        let volumes: Vec<_> = self.volumes.iter().map(|planned| (&planned.name, planned.size)).collect();
        tracing::debug!(vg = %group.name, volumes = volumes.len(), "growing volumes together");
        let changed = group.lvm().resize_batch(&group.name, &volumes).await;
        if let Err(error) = group.store_outcome(changed) {
            tracing::warn!(vg = %group.name, %error, "cannot grow volumes together; each is grown alone");
            return None;
        }
        let mut own = None;
        for Planned { name, size, answer } in self.volumes {
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
}

impl Taken {
    /// Adds a volume to the batch and returns the size in bytes that it is to have. `None`, and nothing is added, if it
    /// has to be grown alone: it is no plain one, or there is no space for it in addition to the others.
    fn plan(&mut self, classes: &DeviceClasses, growth: &Growth, known: &VolumeGroup) -> Option<u64> {
        let scope = Scope::Class(growth.class.clone());
        let (volume, class) = scope.find(classes, known, &growth.name).ok()?;
        let can_grow = is_plain(volume) && !tags::is_hidden(volume) && growth.bytes > volume.visible_size();
        if !can_grow || self.names.contains(&growth.name) {
            return None;
        }
        // One growth by as much as all of them takes as much space
        let wanted = growth.bytes.checked_next_multiple_of(known.extent_size)?.checked_add(self.bytes)?;
        let size = check_space(volume, class.as_deref(), known, wanted).ok()?.checked_sub(self.bytes)?;
        self.bytes = self.bytes.checked_add(size.checked_sub(volume.visible_size())?)?;
        self.names.push(growth.name.clone());
        Some(size)
    }
}

/// Returns whether a volume is thick and linear, and no copy-on-write snapshot.
fn is_plain(volume: &LogicalVolume) -> bool {
    volume.segment.is_none() && volume.pool.is_none() && volume.origin.is_none() && !volume.attr.holds_volumes()
}
