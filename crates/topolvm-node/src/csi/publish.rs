//! `NodePublishVolume`: makes a volume appear at a path. Safe to be broken off anywhere and to be called again.

use std::path::Path;

use super::request::{Access, PublishVolume};
use super::{Agent, Error};
use crate::Filesystem;
use crate::lvmd::Lv;
use crate::mount::{self, BlockDevice, Contents, MountOptions, Mounter, PathKind, STAT, blocking};

impl<M: Mounter> Agent<M> {
    pub(super) async fn publish(&self, request: PublishVolume) -> Result<(), Error> {
        let PublishVolume { id, target, access } = request;
        let lv = self.lv(&id).await?;
        let device = self.mounter.block_device(&lv.path).await?;
        match access {
            Access::Mount { filesystem, options } => {
                self.publish_filesystem(&lv, device, &target, filesystem, &options).await
            }
            Access::Block { readonly } => self.publish_block(&lv, device, &target, readonly).await,
        }
    }

    async fn publish_filesystem(
        &self,
        lv: &Lv,
        device: BlockDevice,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), Error> {
        match self.mounter.mounts_at(target).await?.last() {
            Some(mount) if mount.device != device.number => {
                return Err(Error::TargetTaken { target: target.to_owned(), found: "something else is mounted there" });
            }
            Some(mount) if mount.readonly != options.is_readonly() => {
                return Err(Error::OtherMode { id: lv.name.clone(), target: target.to_owned() });
            }
            Some(_) => {}
            None => {
                self.fill(lv, filesystem, options).await?;
                blocking(STAT, target, make_directory).await?;
                self.mounter.mount(&lv.path, target, filesystem, options).await?;
                if !options.is_readonly() {
                    blocking(STAT, target, open_to_everybody).await?;
                }
            }
        }
        if options.is_readonly() {
            return Ok(());
        }
        blocking(STAT, target, finish_opening).await?;
        // A snapshot or clone can be larger than its source, and a volume can have been expanded while no pod used it
        self.mounter.grow(&lv.path, filesystem).await?;
        Ok(())
    }

    /// Makes sure that the volume holds the filesystem. Only a blank device is ever written to.
    async fn fill(&self, lv: &Lv, filesystem: Filesystem, options: &MountOptions) -> Result<(), Error> {
        let found = match self.mounter.contents(&lv.path).await? {
            Contents::Filesystem(found) if found == filesystem.as_str() => return Ok(()),
            Contents::Blank if options.is_readonly() => return Err(Error::BlankReadOnly(lv.name.clone())),
            Contents::Blank => return Ok(self.mounter.format(&lv.path, filesystem).await?),
            Contents::Filesystem(found) | Contents::Other(found) => found,
        };
        Err(Error::OtherContents { id: lv.name.clone(), wanted: filesystem.to_string(), found })
    }

    async fn publish_block(&self, lv: &Lv, device: BlockDevice, target: &Path, readonly: bool) -> Result<(), Error> {
        let taken = |found| Error::TargetTaken { target: target.to_owned(), found };
        match self.mounter.inspect(target).await? {
            // Nothing is opened, created or chmodded any more: that would go through to the device
            PathKind::BlockDevice(number) if number == device.number => {}
            PathKind::BlockDevice(_) => return Err(taken("another device is published there")),
            PathKind::Directory => return Err(taken("it is a directory, where a block volume needs a file")),
            PathKind::Absent | PathKind::Other => {
                blocking(STAT, target, make_file).await?;
                self.mounter.bind(&lv.path, target).await?;
            }
        }
        if readonly
            && let Some(mount) = self.mounter.mounts_at(target).await?.last()
            && !mount.readonly
        {
            // Keeps the node's mode and owner as they are; the kernel lets a device be written through such a mount
            self.mounter.make_readonly(target).await?;
        }
        Ok(())
    }
}

fn make_directory(path: &Path) -> Result<(), mount::Error> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|error| mount::Error::io("make directory", path, error))
}

/// An empty file to bind a device to. One that an interrupted call has left serves as well.
fn make_file(path: &Path) -> Result<(), mount::Error> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    match made {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(mount::Error::io("make file", path, error)),
    }
}

/// What existing deployments find: everybody may write, and new files belong to the directory's group, which is kubelet's
/// `fsGroup`.
fn open_to_everybody(target: &Path) -> Result<(), mount::Error> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(target, std::fs::Permissions::from_mode(0o2777))
        .map_err(|error| mount::Error::io("set the mode of", target, error))
}

/// An earlier call may have been killed between the mount and the change of mode. The root directory is then still as
/// mkfs made it; once a pod has had the volume, its mode is the pod's business.
fn finish_opening(target: &Path) -> Result<(), mount::Error> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(target).map_err(|error| mount::Error::io("look at", target, error))?;
    if metadata.uid() == 0 && metadata.gid() == 0 && metadata.mode() & 0o7777 == 0o755 {
        open_to_everybody(target)?;
    }
    Ok(())
}
