//! `NodePublishVolume`: makes a volume appear at a path. Safe to be broken off anywhere and to be called again.

use std::path::{Path, PathBuf};

use topolvm_api::LogicalVolume;
use topolvm_runtime::error_chain;

use super::access::Access;
use super::kubelet;
use super::prepare::Prepared;
use super::request::PublishVolume;
use super::target::{find_link, finish_opening, make_directory, make_file, open_to_everybody};
use super::{Agent, Error};
use crate::Filesystem;
use crate::lvmd::Lv;
use crate::mount::{self, BlockDevice, MkfsOptionError, MkfsOptions, MountOptions, Mounter, PathKind, STAT, blocking};

/// A volume and its device.
pub(super) struct Volume<'a> {
    pub(super) object: &'a LogicalVolume,
    pub(super) lv: &'a Lv,
    pub(super) device: BlockDevice,
    /// The node of the device, for programs. People and the mount table know it by the path of the LV.
    pub(super) node: &'a Path,
    /// Another path at which it is published. Its filesystem is in use then, and must not be touched.
    pub(super) other: Option<PathBuf>,
}

/// The wanted filesystem.
pub(super) struct Wanted<'a> {
    pub(super) filesystem: Filesystem,
    pub(super) options: &'a MountOptions,
    pub(super) mkfs_options: &'a Result<MkfsOptions, MkfsOptionError>,
    /// Where it is mounted already and to be bound from.
    pub(super) staging: Option<&'a Path>,
}

impl<M: Mounter> Agent<M> {
    pub(super) async fn publish(&self, request: PublishVolume) -> Result<(), Error> {
        let PublishVolume { id, staging, target, access, exclusive } = request;
        if self.stages && staging.is_none() {
            return Err(Error::NoStagingPath(id));
        }
        let staging = staging.filter(|_| self.stages);
        let (object, lv) = self.lv(&id).await?;
        let object = self.with_record(object, &id, &access).await?;
        let held = self.device(&object, &lv).await?;
        let device = held.device;
        if device.readonly && !access.is_readonly() {
            return Err(Error::ReadOnlyDevice(id));
        }
        let mut others = self.published_elsewhere(device.number, &target, staging.as_deref()).await?.into_iter();
        // CSI, NodePublishVolume: a volume for a single writer has one target path
        let is_kubelets = |other: &PathBuf| kubelet::is_staging(other) || kubelet::is_device_of(&target, other);
        if exclusive && let Some(other) = others.clone().find(|other| !is_kubelets(other)) {
            return Err(Error::PublishedElsewhere { id, other });
        }
        let volume = Volume { object: &object, lv: &lv, device, node: &held.node, other: others.next() };
        match access {
            Access::Mount { filesystem, options, mkfs_options } => {
                let staging = self.source(&volume, staging, &target).await?;
                let staging = staging.as_deref();
                let wanted = Wanted { filesystem, options: &options, mkfs_options: &mkfs_options, staging };
                self.publish_filesystem(&volume, &target, &wanted).await
            }
            Access::Block { readonly } => self.publish_block(&volume, &target, readonly).await,
        }
    }

    pub(super) async fn publish_filesystem(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        wanted: &Wanted<'_>,
    ) -> Result<(), Error> {
        let Wanted { filesystem, options, .. } = *wanted;
        let prepared = match self.mounter.mounts_at(target).await?.last() {
            Some(mount) if mount.device != volume.device.number => {
                return Err(Error::TargetTaken { target: target.to_owned(), found: "something else is mounted there" });
            }
            Some(mount) if mount.filesystem != filesystem.as_str() => {
                let (id, found) = (volume.lv.name.clone(), mount.filesystem.clone());
                return Err(Error::OtherFilesystem { id, target: target.to_owned(), found });
            }
            Some(mount) if mount.readonly != options.is_readonly() => {
                return Err(Error::OtherMode { id: volume.lv.name.clone(), target: target.to_owned() });
            }
            Some(_) if self.is_alive(target).await? => Prepared::Found,
            Some(_) => {
                self.unmount_all(target).await?;
                self.make_appear(volume, target, wanted).await?
            }
            None => self.make_appear(volume, target, wanted).await?,
        };
        if options.is_readonly() {
            return Ok(());
        }
        if prepared == Prepared::Made || !self.volumes.is_settled(volume.object, filesystem) {
            // An earlier call may have been killed between the mount and the change of mode
            blocking(STAT, target, finish_opening).await?;
            // The last that is done before the first pod gets the volume: from now on the filesystem is never made anew
            // by itself, and the mode of its root directory is the pods' own
            self.volumes.record_filesystem(volume.object, filesystem).await?;
        }
        // A snapshot or clone can be larger than its source, and a volume can have been expanded while no pod used it
        self.mounter.grow(volume.node, target, filesystem).await?;
        Ok(())
    }

    /// Whether a mounted filesystem answers. One that has shut down after errors of its disk, such as a full thin pool,
    /// gives nothing but errors until it is unmounted.
    async fn is_alive(&self, target: &Path) -> Result<bool, Error> {
        match self.mounter.inspect(target).await {
            Ok(_) => Ok(true),
            Err(error @ mount::Error::Io { .. }) => {
                let error = error_chain(&error);
                tracing::warn!(error, "the mounted filesystem gives errors; it is mounted anew");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn make_appear(&self, volume: &Volume<'_>, target: &Path, wanted: &Wanted<'_>) -> Result<Prepared, Error> {
        if let Some(found) = blocking(STAT, target, make_directory).await? {
            return Err(Error::TargetTaken { target: target.to_owned(), found });
        }
        match wanted.staging {
            Some(staging) => self.bind(volume, staging, target, wanted).await,
            None => self.mount(volume, target, wanted).await,
        }
    }

    async fn bind(
        &self,
        volume: &Volume<'_>,
        staging: &Path,
        target: &Path,
        wanted: &Wanted<'_>,
    ) -> Result<Prepared, Error> {
        let mut prepared = Prepared::Found;
        let is_readonly = self.mounter.mounts_at(staging).await?.last().is_some_and(|mount| mount.readonly);
        if is_readonly && !wanted.options.is_readonly() {
            return Err(Error::ReadOnlyElsewhere { id: volume.lv.name.clone(), other: staging.to_owned() });
        }
        if !self.is_alive(staging).await? {
            let options = wanted.options.clone().in_mode(is_readonly);
            self.unmount_all(staging).await?;
            prepared = self.mount(volume, staging, &Wanted { options: &options, staging: None, ..*wanted }).await?;
        }
        if !is_readonly && wanted.options.is_readonly() {
            self.bind_readonly(staging, target, wanted.options).await?;
        } else {
            self.mounter.bind(staging, target).await?;
        }
        Ok(prepared)
    }

    async fn mount(&self, volume: &Volume<'_>, target: &Path, wanted: &Wanted<'_>) -> Result<Prepared, Error> {
        let Wanted { filesystem, options, .. } = *wanted;
        let prepared = self.prepare(volume, wanted).await?;
        if let Some(other) = &volume.other {
            let mounts = self.mounter.mounts_at(other).await?;
            if mounts.last().is_some_and(|mount| mount.device != volume.device.number) {
                return Err(Error::UsedRaw { id: volume.lv.name.clone(), other: other.clone() });
            }
            // The kernel gives a filesystem to be read or written as a whole; a mount of it can only be less than that
            match (mounts.last().is_some_and(|mount| mount.filesystem_readonly), options.is_readonly()) {
                (false, true) => {
                    self.bind_readonly(other, target, options).await?;
                    return Ok(prepared);
                }
                (true, false) => {
                    return Err(Error::ReadOnlyElsewhere { id: volume.lv.name.clone(), other: other.clone() });
                }
                (true, true) | (false, false) => {}
            }
        }
        let mut options = options.clone();
        if let Some(option) = filesystem.copy_option() {
            options = options.with(option);
        }
        if volume.device.readonly {
            options = options.with(filesystem.readonly_device_option());
        }
        self.mount_device(volume, target, filesystem, &options).await?;
        let was_opened = prepared == Prepared::Found && self.volumes.recorded_filesystem(volume.object).is_some();
        if !options.is_readonly() && !was_opened {
            blocking(STAT, target, open_to_everybody).await?;
        }
        Ok(prepared)
    }

    /// Mounts the device by its LV's path, which then stands in the mount table. The link must lead to the device before and after that.
    async fn mount_device(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), Error> {
        let (path, wanted) = (&volume.lv.path, volume.device.number);
        self.check_leads_to(path, wanted).await?;
        self.mounter.mount(path, target, filesystem, options).await?;
        let found = self.mounter.mounts_at(target).await?.last().map(|mount| mount.device);
        if found == Some(wanted) {
            return Ok(());
        }
        self.mounter.unmount(target).await?;
        Err(mount::Error::WrongDevice { path: path.clone(), found, wanted }.into())
    }

    async fn bind_readonly(&self, source: &Path, target: &Path, options: &MountOptions) -> Result<(), Error> {
        self.mounter.bind(source, target).await?;
        if let Err(error) = self.mounter.make_readonly(target, options).await {
            // The next call would find a mount that can be written to
            self.unmount_all(target).await?;
            return Err(error.into());
        }
        Ok(())
    }

    async fn publish_block(&self, volume: &Volume<'_>, target: &Path, readonly: bool) -> Result<(), Error> {
        let taken = |found| Error::TargetTaken { target: target.to_owned(), found };
        if let Some(found) = blocking(STAT, target, find_link).await? {
            return Err(taken(found));
        }
        match self.mounter.inspect(target).await? {
            // Nothing is opened, created or chmodded any more: that would go through to the device
            PathKind::BlockDevice(number) if number == volume.device.number => {}
            PathKind::BlockDevice(_) => return Err(taken("another device is published there")),
            PathKind::Directory => return Err(taken("it is a directory, where a block volume needs a file")),
            PathKind::Absent | PathKind::Other => {
                blocking(STAT, target, make_file).await?;
                self.mounter.bind(volume.node, target).await?;
                if let Err(error) = self.check_leads_to(target, volume.device.number).await {
                    self.mounter.unmount(target).await?;
                    return Err(error);
                }
            }
        }
        if readonly
            && let Some(mount) = self.mounter.mounts_at(target).await?.last()
            && !mount.readonly
        {
            // Keeps the node's mode and owner as they are; the kernel lets a device be written through such a mount
            self.mounter.make_readonly(target, &MountOptions::default()).await?;
        }
        Ok(())
    }
}
