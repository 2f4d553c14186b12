//! What is asked of LVM before and after a volume is wiped. The caller has the group's turn.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, VolumeGroup, Wipeable};

use super::Failure;
use crate::engine::Engine;
use crate::engine::group::Group;
use crate::error::Error;
use crate::marks;

impl<R: Host> Engine<R> {
    /// Holds the device of a volume that is to be wiped; `None` when it is not to be wiped any more.
    pub(super) async fn hold(&self, group: &Group, uuid: &str) -> Result<Option<Box<dyn Wipeable>>, Failure> {
        let known = self.current(group).await?;
        let Some(volume) = find(&known, uuid) else { return Ok(None) };
        // After a reboot it may not be active.
        let volume = self.usable(group, volume).await?;
        // Somebody who writes to it while it is wiped would leave something behind.
        if self.is_open(group, &known, &volume).await? {
            return Err(Failure::InUse);
        }
        let (devices, vg) = (Arc::clone(self.devices()), group.name.clone());
        let held = tokio::task::spawn_blocking(move || devices.hold(&vg, &volume)).await?;
        match held {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(Failure::InUse),
            Err(error) => Err(Failure::Open(error)),
        }
    }

    /// Removes a volume that was wiped, and whose device nobody holds any more.
    pub(super) async fn remove_wiped(&self, group: &Group, uuid: &str) -> Result<(), Error> {
        let known = self.current(group).await?;
        // Somebody may have taken it back, who can still see its size.
        let Some(volume) = find(&known, uuid) else { return Ok(()) };
        let name = volume.name.parse()?;
        if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
            let why = format!("has a snapshot that would be lost: {snapshot}");
            return Err(Error::NotAllowed { vg: group.name.clone(), name, why });
        }
        let removed = self.inner.lvm.remove_if(&group.name, &name, uuid, marks::wiping_tag(volume)).await;
        match self.take(group, removed) {
            // Somebody has just taken it back.
            Ok(()) | Err(lvm::Error::Changed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn find<'a>(known: &'a VolumeGroup, uuid: &str) -> Option<&'a LogicalVolume> {
    known.volumes.iter().find(|volume| *volume.uuid == *uuid && marks::is_wiping(volume))
}
