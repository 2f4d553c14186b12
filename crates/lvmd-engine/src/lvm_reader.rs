//! The commands of LVM that change nothing: for code that has locked no volume group.

use std::sync::Arc;

use lvm::{Error, GroupDisk, Host, HostSettings, Lvm, Tag, UsedRange, VgName, VolumeGroup};

/// An LVM that only reads. Clones share it.
#[derive(Debug)]
pub struct LvmReader<R> {
    lvm: Lvm<R>,
}

impl<R> Clone for LvmReader<R> {
    fn clone(&self) -> Self {
        Self { lvm: self.lvm.clone() }
    }
}

impl<R> From<Lvm<R>> for LvmReader<R> {
    fn from(lvm: Lvm<R>) -> Self {
        Self { lvm }
    }
}

impl<R: Host> LvmReader<R> {
    /// Reads the settings of the host's `lvm.conf`; see [`Lvm::host_settings`].
    pub async fn host_settings(&self) -> Result<HostSettings, Error> {
        self.lvm.host_settings().await
    }

    /// Returns the percentage above which a thin pool takes no new volumes; see [`Lvm::thin_pool_threshold`].
    pub(crate) async fn thin_pool_threshold(&self) -> Result<u32, Error> {
        self.lvm.thin_pool_threshold().await
    }

    /// Reports several volume groups; see [`Lvm::volume_groups`].
    pub(crate) async fn volume_groups(&self, vgs: &[VgName]) -> Vec<Result<VolumeGroup, Error>> {
        self.lvm.volume_groups(vgs).await
    }

    /// Reports all volume groups of the machine but these; see [`Lvm::volume_groups_except`].
    pub(crate) async fn volume_groups_except(
        &self,
        known: &[VgName],
    ) -> Result<Vec<Result<VolumeGroup, Error>>, Error> {
        self.lvm.volume_groups_except(known).await
    }

    /// Lists which extents belong to which volume; see [`Lvm::used_ranges`].
    pub(crate) async fn used_ranges(&self, vg: &VgName) -> Result<Vec<UsedRange>, Error> {
        self.lvm.used_ranges(vg).await
    }

    /// Lists the physical volumes of the machine; see [`Lvm::physical_volumes`].
    pub async fn physical_volumes(&self) -> Result<Vec<GroupDisk>, Error> {
        self.lvm.physical_volumes().await
    }

    /// Returns the signature that blkid finds on a disk; see [`Lvm::signature`].
    pub async fn signature(&self, disk: &str) -> Result<Option<String>, String> {
        self.lvm.signature(disk).await
    }

    /// Lets LVM see the disks of a volume group; see [`Lvm::serve`].
    pub(crate) fn serve(&self, vg: &VgName, reported: Option<&VolumeGroup>) {
        self.lvm.serve(vg, reported);
    }

    /// Returns the tag that names this machine; see [`Lvm::owner`].
    pub(crate) fn owner(&self) -> Option<&Tag> {
        self.lvm.owner()
    }

    /// Returns the devices of the machine, which are read without LVM.
    pub(crate) fn devices(&self) -> Arc<R::Devices> {
        self.lvm.runner().devices()
    }
}
