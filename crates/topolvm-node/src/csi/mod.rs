//! The CSI services of a node: Identity and Node.

mod access;
mod error;
mod expand;
mod findings;
mod hanging;
mod health;
mod identity;
mod kubelet;
mod missing;
mod node;
mod prepare;
mod publish;
mod request;
mod stage;
mod stats;
mod target;
mod unpublish;

use std::path::{Path, PathBuf};

use tokio::sync::watch;
use topolvm_api::LogicalVolume;

pub use error::Error;
pub use identity::IdentityService;
pub use node::NodeService;

use crate::Volumes;
use crate::capacity::Pools;
use crate::lvmd::{Lv, Lvmd};
use crate::mount::{self, DeviceNumber, DeviceUse, HeldDevice, Mounter, PathKind};
use hanging::Hanging;
use missing::MissingFilesystems;

/// What the calls of the Node service work with.
#[derive(Debug)]
pub struct Agent<M> {
    volumes: Volumes,
    lvmd: Lvmd,
    mounter: M,
    pools: watch::Receiver<Pools>,
    old_devices: PathBuf,
    stages: bool,
    hanging: Hanging,
    missing: MissingFilesystems,
}

impl<M: Mounter> Agent<M> {
    /// An agent for the volumes of this node on this machine. `pools` is what lvmd said last; versions before 0.33 made
    /// device nodes in `old_devices`, which is `/dev/topolvm`. `stages` says that volumes are staged before they are
    /// published.
    pub fn new(
        volumes: Volumes,
        lvmd: Lvmd,
        mounter: M,
        pools: watch::Receiver<Pools>,
        old_devices: PathBuf,
        stages: bool,
    ) -> Self {
        Self {
            volumes,
            lvmd,
            mounter,
            pools,
            old_devices,
            stages,
            hanging: Hanging::default(),
            missing: MissingFilesystems::default(),
        }
    }

    /// See [`Mounter::device_uses`].
    pub async fn device_uses(&self, device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, mount::Error> {
        self.mounter.device_uses(device, lv).await
    }

    /// The object and the LV of a volume.
    async fn lv(&self, id: &str) -> Result<(LogicalVolume, Lv), Error> {
        tracing::Span::current().record("volume", id);
        let volume = self.volumes.find(id).await?;
        let lv = self.lvmd.find(id, &volume.spec.device_class).await?;
        Ok((volume, lv.ok_or_else(|| Error::NoLv(id.to_owned()))?))
    }

    /// The device of an LV, held open. What LVM calls its path is a link, which is only believed as long as it leads to the device that lvmd names:
    /// where udev has stopped, it can lead to another volume. One that is not active, as after a boot of a machine that activates nothing by itself, is
    /// activated.
    async fn device(&self, volume: &LogicalVolume, lv: &Lv) -> Result<HeldDevice, Error> {
        if let Some(number) = lv.number {
            match self.mounter.hold(&lv.path, number).await {
                Err(mount::Error::NoDevice(_)) => {}
                held => return Ok(held?),
            }
        }
        tracing::info!(volume = lv.name, path = %lv.path.display(), "asks lvmd to activate the logical volume");
        // The protocol has no call for it. lvmd activates what it is asked to work on; growing to the present size changes
        // nothing else, and can make nothing that has just been removed
        if let Err(error) = self.lvmd.resize(&lv.name, &volume.spec.device_class, lv.size_bytes).await {
            tracing::warn!(volume = lv.name, error = error.detail(), "lvmd does not activate the logical volume");
        }
        let active = self.lvmd.find(&lv.name, &volume.spec.device_class).await?;
        let active = active.ok_or_else(|| Error::NoLv(lv.name.clone()))?;
        let number = active.number.ok_or_else(|| mount::Error::NoDevice(active.path.clone()))?;
        Ok(self.mounter.hold(&active.path, number).await?)
    }

    /// Fails unless a path leads to this device now.
    async fn check_leads_to(&self, path: &Path, wanted: DeviceNumber) -> Result<(), Error> {
        let found = match self.mounter.inspect(path).await? {
            PathKind::BlockDevice(number) if number == wanted => return Ok(()),
            PathKind::BlockDevice(number) => Some(number),
            PathKind::Absent | PathKind::Directory | PathKind::Other => None,
        };
        Err(mount::Error::WrongDevice { path: path.to_owned(), found, wanted }.into())
    }
}
