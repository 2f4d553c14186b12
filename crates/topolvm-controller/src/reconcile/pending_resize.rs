//! Reads from events of claims which filesystems wait to be expanded by kubelet. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use topolvm_api::ApiFlavor;
use topolvm_api::claim::{provisioner, volume_name};

/// Condition of a claim whose volume has been expanded and whose filesystem has not.
pub(super) const RESIZE_PENDING: &str = "FileSystemResizePending";

/// The value of `status.allocatedResourceStatuses` before the expansion of the filesystem has begun. csi-resizer writes
/// it; the kubelet replaces it by `NodeResizeInProgress`, `NodeResizeInfeasible` and so on each time that it tries.
const NODE_RESIZE_PENDING: &str = "NodeResizePending";

/// An event of a claim, as far as it is about the size of its filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResizeEvent {
    /// kubelet has to expand it.
    Pending(PendingResize),
    /// The claim with this UID does not wait for kubelet, or is gone.
    Settled(String),
    /// All claims are listed again. Those that were deleted meanwhile are not named.
    Relist,
}

/// A claim whose filesystem waits to be expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingResize {
    pub(super) namespace: String,
    pub(super) claim: String,
    pub(super) uid: String,
    /// The name of its PersistentVolume.
    pub(super) volume: Option<String>,
    /// The size that it waits for, as Kubernetes writes it.
    pub(super) size: String,
}

impl ResizeEvent {
    /// Reads an event; `None` for a claim of another driver.
    pub(super) fn from_event(flavor: ApiFlavor, event: &Event<PersistentVolumeClaim>) -> Option<Self> {
        let (Event::Apply(claim) | Event::InitApply(claim) | Event::Delete(claim)) = event else {
            return matches!(event, Event::Init).then_some(Self::Relist);
        };
        if provisioner(claim)? != flavor.driver_name() {
            return None;
        }
        let pending = PendingResize::from_claim(claim).filter(|_| !matches!(event, Event::Delete(_)));
        Some(pending.map_or_else(|| Self::Settled(claim.uid().unwrap_or_default()), Self::Pending))
    }
}

impl PendingResize {
    /// Reads a claim; `None` if it does not wait.
    fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let status = claim.status.as_ref()?;
        let is_pending = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == RESIZE_PENDING && condition.status == "True");
        let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get("storage"));
        if !is_pending
            || state.is_some_and(|state| state != NODE_RESIZE_PENDING)
            || claim.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        // Kubernetes before 1.23 does not report the allocated size
        let allocated = status.allocated_resources.as_ref().and_then(|allocated| allocated.get("storage"));
        let requested = || claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage");
        Some(Self {
            namespace: claim.namespace().unwrap_or_default(),
            claim: claim.name_any(),
            uid: claim.uid().unwrap_or_default(),
            volume: volume_name(claim).map(str::to_owned),
            size: allocated.or_else(requested).map(|size| size.0.clone()).unwrap_or_default(),
        })
    }
}
