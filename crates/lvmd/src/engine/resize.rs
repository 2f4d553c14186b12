//! Grows volumes.

use std::sync::Arc;

use lvm::{FullName, Host, LogicalVolume, LvName, VolumeGroup};

use super::group::Group;
use super::locate::Scope;
use super::preconditions::{check_no_missing_pvs, round_up_to_extents, space_beside};
use super::state::Engine;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Grows a volume to at least this many bytes and returns it. A volume never gets smaller: one that is large enough
    /// stays as it is, and is activated if it has no device.
    pub async fn resize(&self, class: &str, name: LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let requested = name.clone();
        self.change_volume(class, &requested, async move |engine: Self, group: Arc<Group>, scope: Scope| {
            engine.resize_in_group(&group, &scope, &name, bytes).await
        })
        .await
    }

    async fn resize_in_group(
        &self,
        group: &Group,
        scope: &Scope,
        name: &LvName,
        bytes: u64,
    ) -> Result<LogicalVolume, Error> {
        let known = self.current(group).await?;
        let (volume, class) = self.find_in_scope(scope, &known, name)?;
        let not_allowed = |why: &str| Error::NotAllowed(FullName::new(&group.name, name), why.to_owned());
        if tags::is_unfinished(volume) {
            return Err(not_allowed("is unfinished; create it again"));
        }
        if tags::is_wiping(volume) {
            return Err(not_allowed("is being wiped; remove it again"));
        }
        if bytes <= volume.visible_size() {
            return self.ensure_active(group, volume).await;
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            return Err(not_allowed("is a copy-on-write snapshot and cannot be resized"));
        }
        let bytes = check_space(volume, class.as_deref(), &known, bytes)?;
        self.store_outcome(group, self.inner.lvm.resize(&group.name, name, bytes).await)?;
        group.created_volume(name)
    }
}

/// Returns the size in bytes after rounding. Fails if LVM cannot make the volume that large.
fn check_space(
    volume: &LogicalVolume,
    class: Option<&DeviceClass>,
    group: &VolumeGroup,
    bytes: u64,
) -> Result<u64, Error> {
    check_no_missing_pvs(group)?;
    // The layout that the volume has counts, not that of its class: it may have been created with other options.
    let layout = volume.layout();
    let space = space_beside(volume, &layout, class, group)?;
    let current = volume.visible_size();
    // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
    let size = round_up_to_extents(group, bytes, layout.step());
    size.filter(|size| space.fits(&layout, size.saturating_sub(current)))
        .ok_or(Error::NoSpace { free: space.bytes, requested: bytes.saturating_sub(current) })
}
