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
    #[error("LogicalVolume {name} exists already {difference}")]
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
        "no node has room for {wanted} bytes of device class {device_class:?}; node {node} has the most with {free} \
         bytes"
    )]
    InsufficientCapacity { device_class: String, wanted: u64, node: String, free: u64 },
    #[error(
        "node {node} has {free} bytes of device class {device_class:?} free, and the volumes of pod {pod} that it does \
         not have yet want {wanted} together; none of them is made there"
    )]
    NoRoomForPod { pod: String, node: String, device_class: String, wanted: u64, free: u64 },
    #[error(
        "node {node} has {free} bytes of device class {device_class:?} free beside the volumes that are being made \
         there, and {wanted} are wanted"
    )]
    NoRoomBesideOthers { node: String, device_class: String, wanted: u64, free: u64 },
    #[error("node {node} is being deleted; no volume is made there")]
    NodeBeingDeleted { node: String },
    #[error("there is no Node {node} any more; no volume is made there")]
    NodeGone { node: String },
    #[error(
        "node {node} has no label that selects it for storage any more; it keeps its volumes and takes no new ones"
    )]
    NodeNotSelected { node: String },
    #[error(
        "Node {impostor} has the label {key}={node} of another node, so that pods with volumes of node {node} could be \
         sent to either; no volume is made there. Run kubectl label node {impostor} {key}={impostor} --overwrite, or \
         {key}- if it has no storage"
    )]
    TopologyLabelShared {
        node: String,
        /// Name of the Node that has the label although it is another one.
        impostor: String,
        key: &'static str,
    },
    #[error("node {node} cannot make the volume: {message}")]
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
    #[error("there is no {} {id}", kind.as_str())]
    NotFound { kind: VolumeKind, id: String },
    #[error("the {} {id} to copy does not exist", kind.as_str())]
    SourceNotFound { kind: VolumeKind, id: String },
    #[error(
        "the source of the copy is on node {node}, where the copy has to be too, but that node is not among those that \
         the request allows"
    )]
    SourceNotAccessible { node: String },
    #[error("cannot find out whether a node was chosen for the claim of volume {name}")]
    ClaimUnreadable { name: String, source: ApiFailure },
    #[error(
        "the source of the copy is in device class {source_class:?}, where the copy has to be too, but the \
         StorageClass names {wanted:?}; use a StorageClass for the class of the source"
    )]
    SourceClassDiffers { source_class: String, wanted: String },
    #[error(
        "the source of the copy has the filesystem {found}, and so will the copy, but the StorageClass names {wanted}; \
         use a StorageClass with {found}"
    )]
    SourceFilesystemDiffers { found: String, wanted: String },
    #[error(
        "a copy is as large as its source or larger, here {least} bytes, but {asked} bytes are asked for; ask for \
         {least} or more"
    )]
    SmallerThanSource { least: u64, asked: u64 },
    #[error(
        "{key} of a volume is decided when the volume is made; it is {is:?} and cannot become {wanted:?}, make a new \
         volume and copy the data"
    )]
    Immutable { key: &'static str, is: String, wanted: String },
    #[error("starting_token {0:?} is not one that was given out; begin without a token")]
    InvalidToken(String),
    #[error("the LogicalVolumes have not been listed yet; check that the Kubernetes API server can be reached")]
    VolumesNotListed,
    #[error(
        "LogicalVolume {name} of an earlier volume is still being deleted on node {node}; is topolvm-node running \
         there?"
    )]
    StillBeingDeleted { name: String, node: String },
    #[error("LogicalVolume {0} was deleted by somebody else")]
    DeletedMeanwhile(String),
    #[error(
        "the agent of node {node} has not {awaited} the volume of LogicalVolume {name} yet; is topolvm-node running \
         there?"
    )]
    Timeout {
        /// The step that was waited for: "made", "expanded" or "removed".
        awaited: &'static str,
        name: String,
        node: String,
    },
    #[error("the Nodes have not been listed yet; check that the Kubernetes API server can be reached")]
    NodesNotListed,
    #[error("node {0} has not published its free space yet; are topolvm-node and lvmd running there?")]
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

/// An error of the API server or of the way to it, in the words that users read in events: kube puts the debug form of
/// a whole status into its own text.
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
