//! What can go wrong with a volume, and which gRPC code it is.

use std::error::Error as _;
use std::fmt;

use tonic::Code;
use topolvm_runtime::grpc::GrpcCode;

use super::Kind;

/// Why a volume or snapshot could not be found, made, grown or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot {action} LogicalVolume {name}")]
    Api { action: &'static str, name: String, source: ApiFailure },
    #[error("the API server does not accept a LogicalVolume named {name:?}")]
    Unacceptable { name: String, source: ApiFailure },
    #[error("LogicalVolume {name} exists already {difference}")]
    Differs { name: String, difference: Difference },
    #[error(
        "no node has device class {device_class:?} (empty is the default class); check the device classes of lvmd and \
         that topolvm-node runs on the nodes"
    )]
    NoNode { device_class: String },
    #[error(
        "no node has room for {wanted} bytes of device class {device_class:?}; node {node} has the most with {free} bytes"
    )]
    NoRoom { device_class: String, wanted: u64, node: String, free: u64 },
    #[error("node {node} is being deleted; no volume is made there")]
    NodeLeaving { node: String },
    #[error("node {node} cannot make the volume: {message}")]
    NotMade {
        node: String,
        code: Code,
        message: String,
        /// It would have been a copy, which can be made where its source is and nowhere else.
        is_copy: bool,
    },
    #[error("node {node} cannot expand the volume: {message}")]
    NotExpanded { node: String, code: Code, message: String },
    #[error("there is no {} {id}", kind.as_str())]
    Unknown { kind: Kind, id: String },
    #[error("the {} {id} to copy does not exist", kind.as_str())]
    NoSource { kind: Kind, id: String },
    #[error(
        "the source of the copy is on node {node}, where the copy has to be too, but that node is not among those that the \
         request allows"
    )]
    SourceElsewhere { node: String },
    #[error("cannot find out whether a node was chosen for the claim of volume {name}")]
    ClaimUnknown { name: String, source: ApiFailure },
    #[error(
        "the source of the copy is in device class {source_class:?}, where the copy has to be too, but the StorageClass names \
         {wanted:?}; use a StorageClass for the class of the source"
    )]
    OtherClass { source_class: String, wanted: String },
    #[error(
        "a copy is as large as its source of {source_bytes} bytes or larger, but {asked} bytes are asked for; ask for more"
    )]
    TooSmall { source_bytes: u64, asked: u64 },
    #[error(
        "{key} of a volume is decided when the volume is made; it is {is:?} and cannot become {wanted:?}, make a new volume \
         and copy the data"
    )]
    Fixed { key: &'static str, is: String, wanted: String },
    #[error("starting_token {0:?} is not one that was given out; begin without a token")]
    Token(String),
    #[error("the LogicalVolumes have not been listed yet; check that the Kubernetes API server can be reached")]
    VolumesUnknown,
    #[error(
        "LogicalVolume {name} of an earlier volume is still being deleted on node {node}; is topolvm-node running there?"
    )]
    StillLeaving { name: String, node: String },
    #[error("LogicalVolume {0} was deleted by somebody else")]
    Vanished(String),
    #[error(
        "the agent of node {node} has not {what} the volume of LogicalVolume {name} yet; is topolvm-node running there?"
    )]
    Late {
        /// What is waited for: "made", "expanded" or "removed".
        what: &'static str,
        name: String,
        node: String,
    },
    #[error("the Nodes have not been listed yet; check that the Kubernetes API server can be reached")]
    NodesUnknown,
    #[error("the controller is stopping")]
    Stopping,
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            // Nobody knows whether a change that was sent has happened, so that the caller must ask again: with any code
            // that is final to external-provisioner, a volume that was made after all would be lost.
            Self::Api { .. }
            | Self::ClaimUnknown { .. }
            | Self::NodesUnknown
            | Self::VolumesUnknown
            | Self::Stopping => Code::Unavailable,
            // Never changes: a StorageClass and the class of a source are what they are
            Self::Unacceptable { .. } | Self::OtherClass { .. } | Self::Fixed { .. } => Code::InvalidArgument,
            Self::Differs { .. } => Code::AlreadyExists,
            // external-provisioner then lets the scheduler choose another node. It does not know where the source of a copy
            // is, and may have chosen a wrong node; CSI names this code for that. After INVALID_ARGUMENT, which TopoLVM
            // answers, the claim would stay with the wrong node for ever.
            Self::NoNode { .. } | Self::NoRoom { .. } | Self::SourceElsewhere { .. } | Self::NodeLeaving { .. } => {
                Code::ResourceExhausted
            }
            // CSI names this code for a volume that is to be smaller than its source
            Self::TooSmall { .. } => Code::OutOfRange,
            Self::NotMade { code, is_copy, .. } => not_made(*code, *is_copy),
            Self::NotExpanded { code, .. } => not_expanded(*code),
            Self::Unknown { .. } | Self::NoSource { .. } => Code::NotFound,
            // For a token CSI names this code; the others are over when the caller asks again
            Self::StillLeaving { .. } | Self::Vanished(_) | Self::Token(_) => Code::Aborted,
            Self::Late { .. } => Code::DeadlineExceeded,
        }
    }
}

/// The code for a volume that its node could not make. Nothing is left of it.
fn not_made(code: Code, is_copy: bool) -> Code {
    // The node lacks the device class, its volume group or some of its disks, or the class of lvcreate options; NOT_FOUND is what TopoLVM's
    // lvmd says. Other nodes may have them: external-provisioner lets the scheduler choose again after RESOURCE_EXHAUSTED, and after the
    // node's own code it would ask the same node for ever.
    let is_lacking = matches!(code, Code::FailedPrecondition | Code::NotFound);
    if is_lacking && !is_copy { Code::ResourceExhausted } else { code }
}

/// The code for a volume that its node could not grow.
fn not_expanded(code: Code) -> Code {
    if code == Code::ResourceExhausted {
        // external-resizer keeps trying the same size after RESOURCE_EXHAUSTED, and the user cannot step back to a
        // smaller one; after OUT_OF_RANGE he can
        Code::OutOfRange
    } else if code == Code::FailedPrecondition {
        // CSI keeps this code for a volume that can grow only while nobody uses it, and external-resizer then waits until no pod
        // does. The node means that its volume group or device class is not as it should be: external-resizer asks again, with
        // pauses, after a code that it knows nothing special about, and the user can step back.
        Code::Internal
    } else {
        code
    }
}

/// How an existing volume differs from the one that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    Size(String),
    DeviceClass(String),
    OptionClass(String),
    Source(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(f, "with a size of {size}"),
            Self::DeviceClass(class) => write!(f, "in device class {class:?}"),
            Self::OptionClass(class) => write!(f, "with lvcreate option class {class:?}"),
            Self::Source(source) if source.is_empty() => write!(f, "and is not a copy"),
            Self::Source(source) => write!(f, "and is made from {source}, or for another use"),
        }
    }
}

/// What the API server said, or what was wrong on the way to it. kube puts the debug form of a whole status into its
/// text; users read this text in events.
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

#[cfg(test)]
mod tests {
    use topolvm_runtime::grpc::into_status;

    use super::*;

    fn all_but(special: &[Code]) -> impl Iterator<Item = Code> {
        (1..=16).map(Code::from_i32).filter(|code| !special.contains(code))
    }

    fn made(code: Code, is_copy: bool) -> Code {
        Error::NotMade { node: String::new(), code, message: String::new(), is_copy }.code()
    }

    fn expanded(code: Code) -> Code {
        Error::NotExpanded { node: String::new(), code, message: String::new() }.code()
    }

    #[test]
    fn a_node_that_lacks_what_a_new_volume_needs_means_another_node() {
        for code in [Code::ResourceExhausted, Code::FailedPrecondition, Code::NotFound] {
            assert_eq!(made(code, false), Code::ResourceExhausted);
        }
        for code in all_but(&[Code::FailedPrecondition, Code::NotFound]) {
            assert_eq!(made(code, false), code);
        }
    }

    #[test]
    fn a_copy_can_be_nowhere_else_and_its_nodes_code_travels_unchanged() {
        for code in all_but(&[]) {
            assert_eq!(made(code, true), code);
        }
    }

    #[test]
    fn a_node_that_cannot_grow_a_volume_never_says_that_it_is_in_use_nor_that_the_same_size_will_do_later() {
        assert_eq!(expanded(Code::ResourceExhausted), Code::OutOfRange);
        assert_eq!(expanded(Code::FailedPrecondition), Code::Internal);
        for code in all_but(&[Code::ResourceExhausted, Code::FailedPrecondition]) {
            assert_eq!(expanded(code), code);
        }
    }

    #[test]
    fn an_api_failure_is_told_in_one_sentence() {
        let status = kube::core::Status::failure("etcdserver: request timed out", "InternalError").with_code(500);
        let error = Error::Api {
            action: "create",
            name: "pvc-1".to_owned(),
            source: ApiFailure::from(kube::Error::Api(status.boxed())),
        };
        assert_eq!(
            into_status(error).message(),
            "cannot create LogicalVolume pvc-1: etcdserver: request timed out (HTTP 500)"
        );
    }
}
