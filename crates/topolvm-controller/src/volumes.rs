//! Volumes and snapshots as `LogicalVolume` objects: finds, lists, creates, expands and deletes them, and waits each
//! time until the node agent has done its part.
//!
//! Only the node agent writes their status. Objects that TopoLVM created carry neither our finalizer nor our label at
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
mod node_selection;
mod node_strategy;
mod provisioning;
mod reserve;
mod selected_node;
mod volume;

use kube::{Api, Client};
use tokio::time::Instant;
use topolvm_api::{AccessType, ApiFlavor, IoLimits, LogicalVolume, NodeStrategy};
use topolvm_capacity::{Capacity, VolumeClasses};

pub(crate) use copy::SnapshotRequest;
pub(crate) use error::{ApiFailure, VolumeError};
pub(crate) use list::{Page, PageRequest};
pub(crate) use selected_node::ClaimName;
pub(crate) use volume::{ContentSource, Volume, VolumeKind};

use crate::node_informer::NodeInformer;
use crate::pod_claims::PodClaims;
use crate::volume_informer::{Stopped, VolumeInformer};
use crate::volume_size::VolumeSize;

/// The operations on volumes and snapshots.
#[derive(Clone)]
pub(crate) struct Volumes {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) informer: VolumeInformer,
    pub(crate) nodes: NodeInformer,
    /// The free bytes of the nodes after reservations.
    pub(crate) capacity: Capacity,
    /// The strategy by which a node is preferred where none was selected; `None` is the order of the request.
    pub(crate) node_strategy: Option<NodeStrategy>,
    /// The pods that wait for several volumes.
    pub(crate) pods: PodClaims,
    /// The wall clock.
    pub(crate) now: fn() -> jiff::Timestamp,
}

/// A request for a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRequest {
    /// Name of the `LogicalVolume`.
    pub(crate) name: String,
    pub(crate) size: VolumeSize,
    /// Empty is the node's default class.
    pub(crate) device_class: String,
    /// Empty means the options of the device class.
    pub(crate) lvcreate_option_class: String,
    /// Limits of its I/O. They are no part of what the volume is: they may be others by the time of a repeated request.
    pub(crate) io_limits: IoLimits,
    /// Filesystem that the volume is mounted with; `None` for a device.
    pub(crate) filesystem: Option<String>,
    pub(crate) placement: Placement,
    /// The claim that the volume is for, where the request names it.
    pub(crate) claim: Option<ClaimName>,
    /// The source of a copy; `None` for a volume that begins empty.
    pub(crate) source: Option<CopySource>,
}

impl VolumeRequest {
    /// Returns the classes that decide which space the volume uses.
    fn classes(&self) -> VolumeClasses {
        VolumeClasses::new(&self.device_class, &self.lvcreate_option_class)
    }
}

/// The source of a copy, and the access to the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopySource {
    /// Name of the source's `LogicalVolume`.
    pub(crate) object_name: String,
    pub(crate) id: ContentSource,
    pub(crate) access: AccessType,
    /// The filesystem of the source, which the copy begins with.
    pub(crate) filesystem: Option<String>,
}

/// The nodes on which a volume may be: CSI's accessibility requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Any node; the one with the most free space is taken unless the strategy prefers another.
    Anywhere,
    /// One of these nodes. A new volume is created on the first, or, if no node was selected for its claim, on the
    /// first that has enough free space or the one that the strategy prefers; one that exists may be on any other.
    Nodes {
        /// The preferred node.
        first: String,
        /// The other nodes.
        others: Vec<String>,
    },
}

impl Placement {
    /// Allows this node and no other.
    fn only(node: &str) -> Self {
        Self::Nodes { first: node.to_owned(), others: Vec::new() }
    }

    /// Returns whether another node than this one is preferred.
    fn prefers_another(&self, node: &str) -> bool {
        matches!(self, Self::Nodes { first, .. } if first != node)
    }

    /// Returns whether the volume may be on this node.
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

    /// Reads the object from the API server.
    async fn read(&self, name: &str) -> Result<Option<LogicalVolume>, VolumeError> {
        self.api().get_opt(name).await.map_err(api_error("read", name))
    }

    /// Reads this very object again from the API server; an error if it is gone.
    async fn reread(&self, object: &LogicalVolume) -> Result<LogicalVolume, VolumeError> {
        let found = self.read(object.name()).await?.filter(|found| found.uid() == object.uid());
        found.ok_or_else(|| VolumeError::DeletedMeanwhile(object.name().to_owned()))
    }

    /// Waits until `check` returns something for this very object in the cache; `None` when the deadline has passed.
    /// The caller then reads the object once from the API server: a watch that hangs must not hide what has been done.
    async fn wait_until<T>(
        &self,
        object: &LogicalVolume,
        deadline: Instant,
        mut check: impl FnMut(&LogicalVolume) -> Option<T>,
    ) -> Result<Option<T>, VolumeError> {
        let (name, uid) = (object.name(), object.uid());
        // An absence counts only after a presence: an informer that lags has not seen the object yet
        let mut seen = false;
        let check = |cached: Option<&LogicalVolume>| match cached.filter(|cached| cached.uid() == uid) {
            Some(cached) => {
                seen = true;
                check(cached).map(Ok)
            }
            None => seen.then(|| Err(VolumeError::DeletedMeanwhile(name.to_owned()))),
        };
        match tokio::time::timeout_at(deadline, self.informer.wait_until(name, check)).await {
            Ok(Ok(answer)) => answer.map(Some),
            Ok(Err(Stopped)) => Err(VolumeError::ShuttingDown),
            Err(_elapsed) => Ok(None),
        }
    }
}

/// Returns a function for `map_err` on calls of the API server.
fn api_error(action: &'static str, name: &str) -> impl FnOnce(kube::Error) -> VolumeError {
    let name = name.to_owned();
    move |source| VolumeError::Api { action, name, source: ApiFailure::from(source) }
}
