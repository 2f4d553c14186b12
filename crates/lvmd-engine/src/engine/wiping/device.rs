//! Opens the device of a volume before it is wiped, and removes the volume afterwards.

use lvm::{Devices as _, FullName, Host, LogicalVolume, VolumeGroup, Wipeable};
use lvmd_config::tags;

use super::error::WipeError;
use crate::engine::state::LockedGroup;
use crate::error::Error;

/// Opens the device of a volume exclusively; `None` when the volume is no longer to be wiped.
pub(super) async fn open_for_wiping<R: Host>(
    group: &mut LockedGroup<R>,
    uuid: &str,
) -> Result<Option<Box<dyn Wipeable>>, WipeError> {
    let known = group.current().await?;
    let Some(volume) = find_wiping(&known, uuid) else { return Ok(None) };
    // After a reboot it may not be active.
    let volume = group.ensure_active(volume).await?;
    // A process that writes to it while it is wiped would leave something behind.
    if group.is_open(&known, &volume).await? {
        return Err(WipeError::InUse);
    }
    let (devices, vg) = (group.shared().devices(), known.name.clone());
    let opened = tokio::task::spawn_blocking(move || devices.hold(&vg, &volume)).await?;
    match opened {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Err(WipeError::InUse),
        Err(error) => Err(WipeError::Open(error)),
    }
}

/// Removes a volume that was wiped and whose device is closed. Leaves one alone that an administrator has taken back.
pub(super) async fn remove_wiped<R: Host>(group: &mut LockedGroup<R>, uuid: &str) -> Result<(), Error> {
    let known = group.current().await?;
    let Some(volume) = find_wiping(&known, uuid) else { return Ok(()) };
    let name = volume.name.parse()?;
    if let Some(snapshot) = known.snapshots_of(&volume.name).next() {
        let why = format!("has a snapshot that would be lost: {snapshot}");
        return Err(Error::NotAllowed(FullName::new(&known.name, &name), why));
    }
    let removed = group.lvm().remove_if(&known.name, &name, uuid, tags::wiping_tag(volume)).await;
    match group.store_outcome(removed) {
        // Taken back since the report.
        Ok(()) | Err(lvm::Error::Changed { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn find_wiping<'a>(known: &'a VolumeGroup, uuid: &str) -> Option<&'a LogicalVolume> {
    known.volume_of_uuid(uuid).filter(|volume| tags::is_wiping(volume))
}
