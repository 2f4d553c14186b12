//! Volumes and snapshots as `LogicalVolume` objects: found, listed, made, grown and removed, each time until the node agent
//! has done its part.
//!
//! Nobody but the node agent writes their status. Objects that TopoLVM made carry neither our finalizer nor our label at
//! first, and no annotation of ours, so that nothing here relies on them.

mod copy;
mod create;
mod delete;
mod error;
mod existing;
mod expand;
mod list;
mod lookup;
mod modify;
mod selected_node;
mod volume;

use kube::{Api, Client};
use tokio::time::Instant;
use topolvm_api::{AccessType, ApiFlavor, LogicalVolume};

pub(crate) use copy::NewSnapshot;
pub(crate) use error::{Difference, Error};
pub(crate) use list::{Page, Paging};
pub(crate) use selected_node::ClaimName;
pub(crate) use volume::{Kind, SourceId, Volume};

use crate::node_informer::Nodes;
use crate::volume_informer::{Stopped, VolumeWatch};
use crate::volume_size::VolumeSize;
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

/// A volume or snapshot to make.
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
    /// The claim that it is for, where the request names it.
    pub(crate) claim: Option<ClaimName>,
    /// What it is a copy of; `None` for a volume that begins empty.
    pub(crate) origin: Option<Origin>,
}

/// What a copy is made from, and how the copy may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Name of the source's `LogicalVolume`.
    pub(crate) name: String,
    pub(crate) id: SourceId,
    pub(crate) access: AccessType,
    /// The filesystem that the source has had, which the copy begins with.
    pub(crate) filesystem: Option<String>,
}

/// Where a volume may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// On any node; the one with the most free space is taken.
    Anywhere,
    /// On one of these nodes. A new volume is made on the first, or, if no node was chosen for its claim, on the first that has room; one
    /// that exists may be on any other.
    Nodes {
        /// The node that is preferred.
        first: String,
        /// The other nodes.
        others: Vec<String>,
    },
}

impl Placement {
    /// On this node and no other.
    fn only(node: &str) -> Self {
        Self::Nodes { first: node.to_owned(), others: Vec::new() }
    }

    /// Whether another node of those that will do is the one in front.
    fn prefers_another(&self, node: &str) -> bool {
        matches!(self, Self::Nodes { first, .. } if first != node)
    }

    fn accepts(&self, node: &str) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Nodes { first, others } => first == node || others.iter().any(|other| other == node),
        }
    }
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
