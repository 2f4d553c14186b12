//! Grows volumes.

use std::sync::Arc;

use lvm::{Host, LogicalVolume, LvName};

use super::group::Group;
use super::locate::Scope;
use super::preconditions::{check_no_missing_pvs, check_pool_accepts_volumes, round_up_to_extents, thin_pool_missing};
use super::state::Engine;
use crate::device_class::FreeSpace;
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
        let vg = &group.name;
        let known = self.current(group).await?;
        let (volume, class) = self.find_in_scope(scope, &known, name)?;
        let not_allowed = |why: &str| Error::NotAllowed { vg: vg.clone(), name: name.clone(), why: why.to_owned() };
        if tags::is_unfinished(volume) {
            return Err(not_allowed("is unfinished; create it again"));
        }
        if tags::is_wiping(volume) {
            return Err(not_allowed("is being wiped; remove it again"));
        }
        let current = volume.visible_size();
        if bytes <= current {
            return self.ensure_active(group, volume).await;
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            return Err(not_allowed("is a copy-on-write snapshot and cannot be resized"));
        }
        check_no_missing_pvs(&known)?;
        // The layout that the volume has counts, not that of its class: it may have been created with other options.
        let layout = volume.layout();
        let space = match class.as_deref() {
            Some(class) => {
                check_pool_accepts_volumes(class, &known)?;
                class.free_space(&layout, &known).map_err(|pool| thin_pool_missing(pool, &known))?
            }
            None => FreeSpace::without_class(volume, &known),
        };
        // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
        let bytes = match round_up_to_extents(&known, bytes, layout.step()) {
            Some(rounded) if space.fits(&layout, rounded.saturating_sub(current)) => rounded,
            _ => return Err(Error::NoSpace { free: space.bytes, requested: bytes.saturating_sub(current) }),
        };
        self.store_outcome(group, self.inner.lvm.resize(vg, name, bytes).await)?;
        group.created_volume(name)
    }
}
