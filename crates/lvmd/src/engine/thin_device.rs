//! Thin devices that an LVM that was killed left in a pool: in the way of a new snapshot, or given to a new volume.

use std::slice;

use lvm::{Host, LogicalVolume, LvName};
use topolvm_runtime::error_chain;

use super::Engine;
use super::group::Group;
use crate::error::Error;
use crate::marks;

impl<R: Host> Engine<R> {
    /// Removes the thin device that was in the way of a new volume in a pool, if no volume has it and nothing is lost with it. Returns
    /// whether another attempt makes sense; if not, the error says why.
    pub(super) async fn removes_obstacle(
        &self,
        group: &Group,
        pool: Option<&LvName>,
        made: &mut Result<LogicalVolume, Error>,
    ) -> bool {
        let (Some(pool), Err(Error::Lvm(lvm::Error::ThinDeviceExists { id, stderr, .. }))) = (pool, made) else {
            return false;
        };
        match self.inner.lvm.remove_unused_thin_device(&group.name, pool, *id).await {
            Ok(()) => {
                tracing::warn!(vg = %group.name, %pool, id, "removed a thin device that a killed LVM left and no volume has");
                true
            }
            Err(kept) => {
                let kept = error_chain(&kept);
                stderr.extend(["; lvmd leaves the device alone: ", &kept]);
                false
            }
        }
    }

    /// Makes sure that a volume that was just made in a pool has nothing in it: LVM may have taken a thin device for it that was there
    /// already, with what a snapshot or an older volume has in it. Such a device is nobody's, and goes, if it was made in the transaction
    /// that the volume ended; else it is kept under another name.
    pub(super) async fn check_empty(
        &self,
        group: &Group,
        pool: &LvName,
        name: &LvName,
        volume: LogicalVolume,
    ) -> Result<LogicalVolume, Error> {
        let known = group.known()?;
        // A pool that does not zero has its first block written by LVM, and gives out other blocks with what was in them as well
        if !volume.attr.zeroes_new_blocks() {
            return Ok(volume);
        }
        let status = group.status(self.devices(), &known, &volume).await.ok().flatten();
        if status.and_then(|status| status.mapped_sectors).is_none_or(|mapped| mapped == 0) {
            return Ok(volume);
        }
        let vg = &group.name;
        let kept = match self.inner.lvm.has_thin_device_of_last_transaction(vg, pool, name).await {
            Ok(true) => {
                self.take(group, self.inner.lvm.remove_if(vg, name, &volume.uuid, None).await)?;
                None
            }
            proof => {
                tracing::error!(%vg, %pool, ?proof, "LVM made a volume of a thin device with data in it, which may be an older volume");
                let kept = marks::found_name(&volume)?;
                self.take(group, self.inner.lvm.set_aside(vg, name, &volume.uuid, &[], &kept).await)?;
                let managed = marks::MANAGED.parse()?;
                self.take(group, self.inner.lvm.change_tags(vg, &kept, &[], slice::from_ref(&managed)).await)?;
                Some(kept)
            }
        };
        Err(Error::NotEmpty { vg: vg.clone(), pool: pool.clone(), kept })
    }
}
