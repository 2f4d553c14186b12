//! Adds a disk to the volume group of its disk group, and gives a group the space that its disks have grown by.

use block_device::{Disk, Machine};
use futures::FutureExt as _;
use lvm::{GroupDisk, Host, VgName};
use lvmd_config::{DiskGroups, Refusal};
use lvmd_engine::Engine;

use super::scan::Scanner;

impl<M: Machine, R: Host> Scanner<M, R> {
    /// Adds a disk to this group, which is locked, after a last scan of everything. The disk is open meanwhile: LVM
    /// works on the one that was examined. LVM searches for signatures once more, and refuses the disk if it finds one.
    pub(super) async fn add(
        &self,
        engine: &Engine<R>,
        groups: &DiskGroups,
        vg: &VgName,
        disk: &Disk,
    ) -> Result<(), Refusal> {
        let (scanner, groups, locked, disk) = (self.clone(), groups.clone(), vg.clone(), disk.clone());
        let failed = |error: String| Refusal::Failed(error);
        let added = engine.change_disks(vg, move |disks| {
            let adding = async move {
                let free = scanner.rescan(&groups, &disk).await?;
                if free.group.name != locked {
                    return Err(failed(format!("it is for disk group {} now, and is tried again", free.group.name)));
                }
                let added = if free.exists {
                    disks.extend_group(&free.path).await
                } else {
                    let tag = free.group.tag().map_err(|error| failed(error.to_string()))?;
                    disks.create_group(&tag, &free.path).await
                };
                added.map_err(|error| failed(error.to_string()))
            };
            adding.boxed()
        });
        added.await.map_err(|error| failed(error.to_string()))?
    }
}

/// Makes a physical volume as large as its disk.
pub(super) async fn grow<R: Host>(engine: &Engine<R>, vg: &VgName, disk: &GroupDisk) -> Result<(), Refusal> {
    let path = disk.path.clone();
    let failed = |error: String| Refusal::Failed(error);
    let grown = engine.change_disks(vg, |disks| async move { disks.resize_disk(&path).await }.boxed());
    let grown = grown.await.map_err(|error| failed(error.to_string()))?;
    grown.map_err(|error| failed(error.to_string()))
}
