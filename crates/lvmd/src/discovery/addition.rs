//! Adds a disk to the volume group of its disk group, and gives a group the room that its disks have grown by.

use block_device::{Disk, Machine};
use lvm::{GroupDisk, Host, Lvm, VgName};

use super::scan::Scanner;
use crate::disk_group::DiskGroups;
use crate::disk_report::Refusal;
use crate::engine::Engine;

impl<M: Machine, R: Host> Scanner<M, R> {
    /// Adds a disk to this group, under the lock of the group, after a last look at everything. The disk is open
    /// meanwhile: LVM works on the one that was looked at. LVM looks for signatures once more, and refuses the disk if
    /// it finds one.
    pub(super) async fn add(
        &self,
        engine: &Engine<R>,
        groups: &DiskGroups,
        vg: &VgName,
        disk: &Disk,
    ) -> Result<(), Refusal> {
        let (scanner, groups, disk) = (self.clone(), groups.clone(), disk.clone());
        let adding = move |lvm: Lvm<R>| async move {
            let free = scanner.look_again(&groups, &disk).await?;
            let failed = |error: String| Refusal::Failed(error);
            let added = if free.exists {
                lvm.extend_group(&free.group.name, &free.path).await
            } else {
                let tag = free.group.tag().map_err(|error| failed(error.to_string()))?;
                lvm.create_group(&free.group.name, &tag, &free.path).await
            };
            added.map_err(|error| failed(error.to_string()))
        };
        engine.change_disks(vg, adding).await.map_err(|error| Refusal::Failed(error.to_string()))?
    }
}

/// Makes a physical volume as large as its disk.
pub(super) async fn grow<R: Host>(engine: &Engine<R>, vg: &VgName, disk: &GroupDisk) -> Result<(), Refusal> {
    let path = disk.path.clone();
    let growing = move |lvm: Lvm<R>| async move { lvm.resize_disk(&path).await };
    let failed = |error: String| Refusal::Failed(error);
    let grown = engine.change_disks(vg, growing).await.map_err(|error| failed(error.to_string()))?;
    grown.map_err(|error| failed(error.to_string()))
}
