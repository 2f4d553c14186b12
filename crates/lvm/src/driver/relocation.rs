//! Moves what lies on physical volumes, and takes empty ones out of their groups.

use super::{Changed, Lvm};
use crate::report::{UsedRange, used_ranges};
use crate::{Error, Host, LogicalVolume, LvName, LvmCommand, Tag, VgName};

impl<R: Host> Lvm<R> {
    /// Lists which extents of a group's physical volumes belong to which volume.
    pub async fn used_ranges(&self, vg: &VgName) -> Result<Vec<UsedRange>, Error> {
        self.parse(&LvmCommand::used_ranges(vg), used_ranges).await
    }

    /// Moves extents of a physical volume; see [`LvmCommand::move_extents`].
    pub async fn move_extents(
        &self,
        vg: &VgName,
        from: &str,
        extents: (u64, u64),
        to: Option<&str>,
    ) -> Result<(), Error> {
        self.change_pvs(vg, &LvmCommand::move_extents(from, extents, to)).await
    }

    /// Ends the move of extents of a physical volume; see [`LvmCommand::abort_move`].
    pub async fn abort_move(&self, vg: &VgName, from: &str) -> Result<(), Error> {
        self.change_pvs(vg, &LvmCommand::abort_move(from)).await
    }

    /// Allows or forbids LVM to make volumes on a physical volume, and changes its tags.
    pub async fn change_pv(
        &self,
        vg: &VgName,
        pv: &str,
        allocatable: bool,
        add: &[Tag],
        remove: &[Tag],
    ) -> Result<(), Error> {
        self.change_pvs(vg, &LvmCommand::change_pv(pv, allocatable, add, remove)).await
    }

    /// Makes a volume of just these extents of a physical volume that is not allocatable, neither before nor
    /// afterwards. It is in between, because LVM makes no volume on one that is not. See
    /// [`LvmCommand::create_of_extents`].
    pub async fn claim_extents(
        &self,
        vg: &VgName,
        name: &LvName,
        pv: &str,
        ranges: &[(u64, u64)],
        tags: &[Tag],
    ) -> Changed {
        let commands = vec![
            LvmCommand::change_pv(pv, true, &[], &[]),
            LvmCommand::create_of_extents(vg, name, pv, ranges, tags),
            LvmCommand::change_pv(pv, false, &[], &[]),
        ];
        let has = |volume: &LogicalVolume| tags.iter().all(|tag| volume.has_tag(tag));
        self.change(vg, name, commands, |volume, _| volume.is_some_and(has)).await
    }

    /// Takes a physical volume out of its group, if nothing is on it and it is not the last one.
    pub async fn reduce_group(&self, vg: &VgName, pv: &str) -> Result<(), Error> {
        self.change_pvs(vg, &LvmCommand::reduce_group(vg, pv)).await
    }

    /// Gives a RAID replacements for its lost disks. Without enough free space LVM reports success and leaves the RAID
    /// unchanged.
    pub async fn repair_mirror(&self, vg: &VgName, name: &LvName) -> Changed {
        let command = LvmCommand::repair_mirror(vg, name);
        let done = self.change_pvs(vg, &command).await;
        Changed { done, group: self.volume_group(vg).await.ok() }
    }

    /// Forgets the missing physical volumes of a group on which nothing is.
    pub async fn forget_missing_disks(&self, vg: &VgName) -> Result<(), Error> {
        self.change_pvs(vg, &LvmCommand::forget_missing_disks(vg)).await
    }

    pub(crate) async fn change_pvs(&self, vg: &VgName, command: &LvmCommand) -> Result<(), Error> {
        self.ask(command, |output| match output.code {
            Some(0) => Ok(()),
            _ => Err(Error::from_output(command, vg, None, output)),
        })
        .await
    }
}
