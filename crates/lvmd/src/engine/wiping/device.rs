//! Opens the device of a volume before it is wiped, and removes the volume afterwards. The caller holds the group's
//! lock.

use lvm::{Devices as _, FullName, Host, LogicalVolume, VolumeGroup, Wipeable};

use super::error::WipeError;
use crate::engine::group::Group;
use crate::engine::state::Engine;
use crate::error::Error;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Opens the device of a volume exclusively; `None` when the volume is no longer to be wiped.
    pub(super) async fn open_for_wiping(
        &self,
        group: &Group,
        uuid: &str,
    ) -> Result<Option<Box<dyn Wipeable>>, WipeError> {
        let known = self.current(group).await?;
        let Some(volume) = find_wiping(&known, uuid) else { return Ok(None) };
        // After a reboot it may not be active.
        let volume = self.ensure_active(group, volume).await?;
        // Whoever writes to it while it is wiped would leave something behind.
        if self.is_open(group, &known, &volume).await? {
            return Err(WipeError::InUse);
        }
        let (devices, vg) = (self.devices(), group.name.clone());
        let opened = tokio::task::spawn_blocking(move || devices.hold(&vg, &volume)).await?;
        match opened {
            Ok(device) => Ok(Some(device)),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(WipeError::InUse),
            Err(error) => Err(WipeError::Open(error)),
        }
    }

    /// Removes a volume that was wiped and whose device is closed. Leaves one alone that an administrator has taken
    /// back.
    pub(super) async fn remove_wiped(&self, group: &Group, uuid: &str) -> Result<(), Error> {
        let known = self.current(group).await?;
        let Some(volume) = find_wiping(&known, uuid) else { return Ok(()) };
        let name = volume.name.parse()?;
        if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
            let why = format!("has a snapshot that would be lost: {snapshot}");
            return Err(Error::NotAllowed(FullName::new(&group.name, &name), why));
        }
        let removed = self.inner.lvm.remove_if(&group.name, &name, uuid, tags::wiping_tag(volume)).await;
        match self.store_outcome(group, removed) {
            // Taken back since the report.
            Ok(()) | Err(lvm::Error::Changed { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn find_wiping<'a>(known: &'a VolumeGroup, uuid: &str) -> Option<&'a LogicalVolume> {
    known.volume_of_uuid(uuid).filter(|volume| tags::is_wiping(volume))
}
