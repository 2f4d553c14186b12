//! Thin devices that a killed LVM left in a pool without a volume: they block a new snapshot, or LVM gives them to a
//! new volume.

use std::slice;

use lvm::{Changed, FullName, Host, LogicalVolume, LvName, Tag, TagChanges};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Runs a creation in a thin pool or, without one, in the group itself, and runs it once more if it failed only
    /// because of a thin device that has been removed since.
    pub(super) async fn create_with_retry<F: Future<Output = Changed>>(
        &self,
        group: &Group,
        pool: Option<&LvName>,
        name: &LvName,
        making: &Tag,
        create: impl Fn() -> F,
    ) -> Result<LogicalVolume, Error> {
        let mut created = self.finish_creation(group, name, making, create().await).await;
        if self.remove_blocking_thin_device(group, pool, &mut created).await {
            created = self.finish_creation(group, name, making, create().await).await;
        }
        created
    }

    /// Removes the thin device that blocked a new volume in a pool, if no volume has the device and nothing is lost
    /// with it. Returns whether another attempt makes sense; if not, the error of the creation says why.
    async fn remove_blocking_thin_device(
        &self,
        group: &Group,
        pool: Option<&LvName>,
        created: &mut Result<LogicalVolume, Error>,
    ) -> bool {
        let (Some(pool), Err(Error::Lvm(lvm::Error::ThinDeviceExists { id, stderr, .. }))) = (pool, created) else {
            return false;
        };
        let vg = &group.name;
        match self.inner.lvm.remove_unused_thin_device(vg, pool, *id).await {
            Ok(()) => {
                tracing::warn!(%vg, %pool, id, "removed a thin device that a killed LVM left and no volume has");
                true
            }
            Err(kept) => {
                stderr.extend(["; lvmd leaves the device alone: ", &error_chain(&kept)]);
                false
            }
        }
    }

    /// Checks that a new volume in a pool is empty: LVM may have given it a thin device that was there already, with
    /// the data of a snapshot or an older volume. Such a volume is removed if the device belongs to the pool's last
    /// transaction, which a killed LVM did not complete; otherwise it is kept under another name, because it may be a
    /// volume of older metadata.
    pub(super) async fn check_thin_volume_is_empty(
        &self,
        group: &Group,
        pool: &LvName,
        name: &LvName,
        volume: LogicalVolume,
    ) -> Result<LogicalVolume, Error> {
        let known = group.try_cached()?;
        // In a pool that does not zero, LVM writes the first block of a new volume, and other blocks have old contents
        // anyway.
        if !volume.attr.zeroes_new_blocks() {
            return Ok(volume);
        }
        let status = group.device_status(&self.devices(), &known, &volume).await.ok().flatten();
        if status.and_then(|status| status.mapped_sectors).is_none_or(|mapped| mapped == 0) {
            return Ok(volume);
        }
        let vg = &group.name;
        let kept = match self.inner.lvm.has_thin_device_of_last_transaction(vg, pool, name).await {
            Ok(true) => {
                self.store_outcome(group, self.inner.lvm.remove_if(vg, name, &volume.uuid, None).await)?;
                None
            }
            proof => {
                tracing::error!(
                    %vg, %pool, ?proof,
                    "LVM made a volume of a thin device with data in it, which may be an older volume"
                );
                let kept = tags::found_name(&volume)?;
                self.store_outcome(
                    group,
                    self.inner.lvm.rename_with_tags(vg, name, &volume.uuid, TagChanges::default(), &kept).await,
                )?;
                let managed = tags::MANAGED.parse()?;
                let untagged = self.inner.lvm.change_tags(vg, &kept, &[], slice::from_ref(&managed)).await;
                self.store_outcome(group, untagged)?;
                Some(FullName::new(vg, &kept))
            }
        };
        Err(Error::NotEmpty { pool: FullName::new(vg, pool), kept })
    }
}
