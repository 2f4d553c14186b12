//! The errors of operations on volumes. Their gRPC codes are in `csi::status_code`.

use std::error::Error as _;
use std::fmt;

use topolvm_api::LogicalVolume;

use super::VolumeKind;

/// A volume or snapshot could not be found, created, expanded or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("cannot {action} LogicalVolume {name}")]
    Api { action: &'static str, name: String, source: ApiFailure },
    #[error("the API server does not accept a LogicalVolume named {name:?}")]
    InvalidObject { name: String, source: ApiFailure },
    #[error("LogicalVolume {name} already exists {difference}")]
    AlreadyExists {
        name: String,
        /// The property in which it differs from the requested one, with its value.
        difference: String,
    },
    #[error(
        "no node has device class {device_class:?} (empty is the default class); check the device classes of lvmd and \
         that topolvm-node runs on the nodes"
    )]
    NoNodeWithClass { device_class: String },
    #[error(
        "no node has {wanted} bytes of free space in device class {device_class:?}; node {node} has the most with \
         {free} bytes"
    )]
    InsufficientCapacity { device_class: String, wanted: u64, node: String, free: u64 },
    #[error(
        "node {node} has {free} bytes free in device class {device_class:?}, but the remaining volumes of pod {pod} \
         need {wanted} bytes together; none of them is created there"
    )]
    NoSpaceForPod { pod: String, node: String, device_class: String, wanted: u64, free: u64 },
    #[error(
        "node {node} has {free} bytes free in device class {device_class:?} in addition to the volumes that are being \
         created there, but {wanted} bytes are requested"
    )]
    NoSpaceWithOthers { node: String, device_class: String, wanted: u64, free: u64 },
    #[error("node {node} is being deleted; no volume is created there")]
    NodeBeingDeleted { node: String },
    #[error("Node {node} no longer exists; no volume is created there")]
    NodeGone { node: String },
    #[error("node {node} no longer has a label that selects it for storage; it keeps its volumes and gets no new ones")]
    NodeNotSelected { node: String },
    #[error(
        "Node {impostor} has the label {key}={node} of another node, so pods with volumes of node {node} could be \
         scheduled to either; no volume is created there. Run kubectl label node {impostor} {key}={impostor} \
         --overwrite, or {key}- if it has no storage"
    )]
    TopologyLabelShared {
        node: String,
        /// Name of the Node that has the label although it is another one.
        impostor: String,
        key: &'static str,
    },
    #[error("node {node} cannot create the volume: {message}")]
    CreateFailed {
        node: String,
        /// The gRPC code that the node agent wrote into the status.
        code: i32,
        message: String,
        /// The volume would have been a copy, which can be made where its source is and nowhere else.
        is_copy: bool,
    },
    #[error("node {node} cannot expand the volume: {message}")]
    ExpandFailed { node: String, code: i32, message: String },
    #[error("the {} {id} does not exist", kind.as_str())]
    NotFound { kind: VolumeKind, id: String },
    #[error("the {} {id} to copy does not exist", kind.as_str())]
    SourceNotFound { kind: VolumeKind, id: String },
    #[error(
        "the source of the copy is on node {node}, and a copy must be on the same node, but the request does not allow \
         that node"
    )]
    SourceNotAccessible { node: String },
    #[error("cannot determine whether a node was selected for the claim of volume {name}")]
    ClaimUnreadable { name: String, source: ApiFailure },
    #[error(
        "the source of the copy is in device class {source_class:?}, and a copy must be in the same class, but the \
         StorageClass names {wanted:?}; use a StorageClass with the class of the source"
    )]
    SourceClassDiffers { source_class: String, wanted: String },
    #[error(
        "the source of the copy has the filesystem {found}, and a copy has the same filesystem, but the StorageClass \
         names {wanted}; use a StorageClass with {found}"
    )]
    SourceFilesystemDiffers { found: String, wanted: String },
    #[error(
        "a copy must be at least as large as its source, here {least} bytes, but {asked} bytes are requested; request \
         {least} or more"
    )]
    SmallerThanSource { least: u64, asked: u64 },
    #[error(
        "{key} of a volume cannot be changed after its creation; it is {is:?}, not {wanted:?}. Create a new volume and \
         copy the data"
    )]
    Immutable { key: &'static str, is: String, wanted: String },
    #[error(
        "snapshots of one moment need all volumes on one node, but there are {volumes}; group only volumes of one node"
    )]
    GroupOnSeveralNodes {
        /// The volumes with their nodes.
        volumes: String,
    },
    #[error(
        "topolvm-node on node {node} does not know groups of snapshots and took them at different moments, so none is \
         kept; upgrade topolvm-node there"
    )]
    NotTakenTogether { node: String },
    #[error("the group of snapshots {id} does not exist, or some of its snapshots do not")]
    GroupNotFound { id: String },
    #[error("snapshot {snapshot} is not a member of the group of snapshots {id}; list the members of the group")]
    NotInGroup { snapshot: String, id: String },
    #[error("snapshot {snapshot} of the group of snapshots {id} is not listed; list all members of the group, or none")]
    MissingOfGroup { snapshot: String, id: String },
    #[error("snapshot {snapshot} is a member of the group of snapshots {id}; delete the group")]
    MemberOfGroup { snapshot: String, id: String },
    #[error("unknown starting_token {0:?}; start without a token")]
    InvalidToken(String),
    #[error("the LogicalVolumes have not been listed yet; check that the Kubernetes API server is reachable")]
    VolumesNotListed,
    #[error(
        "LogicalVolume {name} of a previous volume is still being deleted on node {node}; check that topolvm-node runs \
         there"
    )]
    StillBeingDeleted { name: String, node: String },
    #[error("LogicalVolume {0} was deleted concurrently")]
    DeletedMeanwhile(String),
    #[error(
        "the agent of node {node} has not {awaited} the volume of LogicalVolume {name} yet; check that topolvm-node \
         runs there"
    )]
    Timeout {
        /// The step that was waited for: "made", "expanded" or "removed".
        awaited: &'static str,
        name: String,
        node: String,
    },
    #[error("the Nodes have not been listed yet; check that the Kubernetes API server is reachable")]
    NodesNotListed,
    #[error("node {0} has not published its free space yet; check that topolvm-node and lvmd run there")]
    NotPublished(String),
    #[error("the controller is stopping")]
    ShuttingDown,
}

impl VolumeError {
    /// The agent has not done this step ("made", "expanded" or "removed") in time.
    pub(super) fn timeout(awaited: &'static str, object: &LogicalVolume) -> Self {
        Self::Timeout { awaited, name: object.name().to_owned(), node: object.spec.node_name.clone() }
    }
}

/// An error of the API server or of the connection to it, formatted for users, who read it in Events: kube includes the
/// debug form of a whole status in its own text.
#[derive(Debug)]
pub(crate) struct ApiFailure(Box<kube::Error>);

impl From<kube::Error> for ApiFailure {
    fn from(error: kube::Error) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for ApiFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let kube::Error::Api(status) = &*self.0 {
            // Others are forbidden too, for instance what a definition that is being deleted would create
            let is_rbac = status.code == 403 && status.message.contains(" cannot ");
            let advice = if is_rbac { "; allow it in the ClusterRole of this service account" } else { "" };
            return write!(f, "{} (HTTP {}{advice})", status.message, status.code);
        }
        // Most of kube's errors repeat their source's text, and the reason of a failed connection is the last source
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        f.write_str(&text)
    }
}

impl std::error::Error for ApiFailure {}
