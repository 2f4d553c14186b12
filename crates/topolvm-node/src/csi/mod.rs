//! The CSI services of a node: Identity and Node.

mod error;
mod expand;
mod identity;
mod node;
mod publish;
mod request;
mod stats;
mod unpublish;

pub use error::Error;
pub use identity::IdentityService;
pub use node::NodeService;

use crate::Volumes;
use crate::lvmd::{Lv, Lvmd};

/// What the calls of the Node service work with.
#[derive(Debug)]
pub struct Agent<M> {
    /// LogicalVolumes of this node.
    pub volumes: Volumes,
    /// Where the LVs are.
    pub lvmd: Lvmd,
    /// The machine.
    pub mounter: M,
    /// Where the devices of very old versions lie; `/dev/topolvm`.
    pub old_devices: std::path::PathBuf,
}

impl<M> Agent<M> {
    /// The LV of a volume.
    async fn lv(&self, id: &str) -> Result<Lv, Error> {
        let volume = self.volumes.find(id).await?;
        self.lvmd.find(id, &volume.spec.device_class).await?.ok_or_else(|| Error::NoLv(id.to_owned()))
    }
}
