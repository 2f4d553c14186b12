//! Volumes as `LogicalVolume` objects: found, made, grown and removed, each time until the node agent has done its part.
//!
//! Nobody but the node agent writes their status. Objects that TopoLVM made carry neither our finalizer nor our label at
//! first, so that nothing here relies on them.

mod ensure;
mod error;
mod expand;
mod lookup;
mod remove;

use kube::{Api, Client};
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, LogicalVolume};

pub(crate) use error::{Difference, Error};

use crate::nodes::Nodes;
use crate::volume_size::VolumeSize;
use crate::volume_watch::{Stopped, VolumeWatch};
use error::ApiFailure;

/// Makes and changes volumes.
#[derive(Clone)]
pub(crate) struct Volumes {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) watch: VolumeWatch,
    pub(crate) nodes: Nodes,
    /// The wall clock.
    pub(crate) now: fn() -> jiff::Timestamp,
}

/// A volume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Name of the `LogicalVolume`.
    pub(crate) name: String,
    pub(crate) size: VolumeSize,
    /// Empty is the node's default class.
    pub(crate) device_class: String,
    /// Empty is "as the device class says".
    pub(crate) lvcreate_option_class: String,
    pub(crate) placement: Placement,
}

/// Where a volume may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On any node; the one with the most free space is taken.
    Anywhere,
    /// On one of these nodes. A new volume is made on the first; one that exists may be on any other.
    Nodes {
        /// The node that is preferred.
        first: String,
        /// The other nodes.
        others: Vec<String>,
    },
}

impl Placement {
    fn accepts(&self, node: &str) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Nodes { first, others } => first == node || others.iter().any(|other| other == node),
        }
    }
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// CSI's volume id: UID of the object and name of the LV in LVM.
    pub(crate) id: String,
    /// Real size in bytes, as rounded up by LVM.
    pub(crate) bytes: u64,
    /// The node that has it.
    pub(crate) node: String,
}

impl Volumes {
    fn api(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &self.flavor)
    }

    /// The object as the API server has it now.
    async fn get(&self, name: &str) -> Result<Option<LogicalVolume>, Error> {
        self.api().get_opt(name).await.map_err(failed("read", name))
    }

    /// Waits until `look` at the watched object has an answer, or `None` when the deadline has passed. The caller then
    /// asks the API server once: a watch that hangs must not hide what has been done.
    async fn wait<T>(
        &self,
        name: &str,
        deadline: Instant,
        look: impl FnMut(Option<&LogicalVolume>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match tokio::time::timeout_at(deadline, self.watch.until(name, look)).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(Stopped)) => Err(Error::Stopping),
            Err(_elapsed) => Ok(None),
        }
    }
}

/// For `map_err` on calls of the API server.
fn failed(action: &'static str, name: &str) -> impl FnOnce(kube::Error) -> Error {
    let name = name.to_owned();
    move |source| Error::Api { action, name, source: ApiFailure::from(source) }
}
