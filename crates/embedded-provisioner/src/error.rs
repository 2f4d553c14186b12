//! Errors before a volume is requested: what is wrong with a claim, and whether that can change.

use topolvm_api::ParseQuantityError;
use topolvm_kube::{ReconcileError, SecretReadError};

use crate::secret_reference::SecretError;

/// No volume can be requested for a claim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error(
        "spec.selector selects among existing PersistentVolumes, and no volume is created for it; remove the selector, \
         or create a PersistentVolume that it selects"
    )]
    Selector,
    #[error(
        "StorageClass {0} names the filesystem in several parameters; keep only csi.storage.k8s.io/fstype in a new \
         StorageClass"
    )]
    TwoFilesystems(String),
    #[error(
        "StorageClass {class} has the parameter {key}, which is reserved and not known; correct it in a new \
         StorageClass"
    )]
    UnknownParameter { class: String, key: String },
    #[error("the access mode {0} is not known; use ReadWriteOnce or ReadWriteOncePod")]
    UnknownAccessMode(String),
    #[error("the requested size is not valid")]
    Size(#[from] ParseQuantityError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the data source is in another namespace, which is not supported; copy it to the namespace of the claim")]
    SourceInOtherNamespace,
    #[error("the data source has no name; name it in a new claim")]
    UnnamedSource,
    #[error("data sources of kind {0} are disabled in this driver; start topolvm-controller with --enable-snapshots")]
    SourceUnsupported(&'static str),
    #[error("the data source, {kind} {name}, does not exist; create it, or delete the claim")]
    SourceMissing { kind: &'static str, name: String },
    #[error("the data source, {kind} {name}, {problem}")]
    SourceNotUsable { kind: &'static str, name: String, problem: SourceProblem },
    #[error("VolumeAttributesClass {0} does not exist; create it, or name another one in a new claim")]
    AttributesClassMissing(String),
    #[error("VolumeAttributesClass {name} is for the driver {driver}; name one of this driver in a new claim")]
    AttributesClassOfOtherDriver { name: String, driver: String },
    #[error(transparent)]
    SecretRead(#[from] SecretReadError),
    #[error("node {0} does not exist; the scheduler has to select another one")]
    NodeGone(String),
    #[error("node {node} is not in allowedTopologies of the StorageClass; the scheduler has to select another one")]
    NodeNotAllowed { node: String },
    #[error("node {node} has no CSINode {node}, which its kubelet creates; the scheduler has to select another one")]
    NodeWithoutCsiNode { node: String },
    #[error("the driver {driver} is not registered on node {node}; check that topolvm-node runs there")]
    NodeWithoutDriver { node: String, driver: String },
    #[error("node {node} has no label {key}; check that topolvm-node runs on it and is registered with the kubelet")]
    NodeWithoutLabel { node: String, key: String },
    #[error(
        "no node has the label {key} and is in allowedTopologies of the StorageClass; check that topolvm-node runs, \
         and the allowedTopologies"
    )]
    NoNode { key: String },
    #[error(transparent)]
    Api(#[from] ReconcileError),
}

/// A data source cannot be copied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceProblem {
    #[error("is being deleted; name another one in a new claim")]
    Deleted,
    #[error("is not ready; wait until it is")]
    NotReady,
    #[error("is not bound; wait until it is")]
    NotBound,
    #[error("is bound to an object that does not refer to it; name another one in a new claim")]
    BoundToOther,
    #[error("is of the driver {0}; use a StorageClass of that driver in a new claim")]
    OtherDriver(String),
    #[error("has {source_bytes} bytes, and the claim requests {requested}; request at least that in a new claim")]
    Larger { source_bytes: u64, requested: u64 },
    #[error("has the volume mode {0}; request that mode in a new claim")]
    OtherMode(&'static str),
    #[error(
        "has the volume mode {mode}, which a claim may change only if its VolumeSnapshotContent {content} has the \
         annotation snapshot.storage.kubernetes.io/allow-volume-mode-change: \"true\"; request that mode in a new claim"
    )]
    ModeChange { mode: String, content: String },
    #[error("has no StorageClass; name one with a StorageClass in a new claim")]
    WithoutClass,
}

impl PrepareError {
    /// Returns whether the scheduler has to select another node.
    pub(crate) const fn needs_other_node(&self) -> bool {
        matches!(self, Self::NodeGone(_) | Self::NodeWithoutCsiNode { .. } | Self::NodeNotAllowed { .. })
    }

    /// Returns whether it can end without a change of the claim, its StorageClass and its source: an agent starts, or
    /// the API server answers.
    pub(crate) const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::NodeWithoutCsiNode { .. }
                | Self::NodeWithoutDriver { .. }
                | Self::NodeWithoutLabel { .. }
                | Self::SecretRead(SecretReadError::Api(_))
                | Self::Api(_)
        )
    }

    /// Returns whether the claim never gets a volume with this StorageClass.
    pub(crate) const fn is_permanent(&self) -> bool {
        match self {
            Self::Selector
            | Self::TwoFilesystems(_)
            | Self::UnknownParameter { .. }
            | Self::UnknownAccessMode(_)
            | Self::Size(_)
            | Self::SourceInOtherNamespace
            | Self::UnnamedSource
            | Self::SourceUnsupported(_)
            | Self::AttributesClassOfOtherDriver { .. } => true,
            // An annotation of the claim may change what a template becomes
            Self::Secret(_)
            | Self::SourceMissing { .. }
            | Self::SourceNotUsable { .. }
            | Self::AttributesClassMissing(_)
            | Self::SecretRead(_)
            | Self::NodeGone(_)
            | Self::NodeNotAllowed { .. }
            | Self::NodeWithoutCsiNode { .. }
            | Self::NodeWithoutDriver { .. }
            | Self::NodeWithoutLabel { .. }
            | Self::NoNode { .. }
            | Self::Api(_) => false,
        }
    }
}
