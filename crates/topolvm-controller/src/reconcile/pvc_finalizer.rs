//! Decides which finalizers of TopoLVM to remove from a claim. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use topolvm_api::ApiFlavor;
use topolvm_kube::{CachedClaim, has_finalizer};

/// The claim finalizers of both API groups.
pub(super) const PVC_FINALIZERS: [&str; 2] = [ApiFlavor::TopoLvm.pvc_finalizer(), ApiFlavor::Legacy.pvc_finalizer()];

/// The rule for which claim finalizers are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FinalizerPolicy {
    pub(super) flavor: ApiFlavor,
    /// Claims carry the finalizer of this API group on purpose (`--pvc-finalizer`).
    pub(super) is_kept: bool,
}

impl FinalizerPolicy {
    /// Returns whether the claim has a finalizer to remove now.
    pub(super) fn is_removal_due(self, claim: &CachedClaim) -> bool {
        PVC_FINALIZERS.iter().any(|name| claim.has_finalizer(name))
            && (self.obsolete().iter().any(|name| claim.has_finalizer(name)) || self.is_last(&claim.to_object()))
    }

    /// Returns the finalizers to remove from every claim. TopoLVM left some on a claim more than once.
    pub(super) fn obsolete(self) -> Vec<&'static str> {
        PVC_FINALIZERS.into_iter().filter(|name| !self.is_kept || *name != self.flavor.pvc_finalizer()).collect()
    }

    /// Returns whether a claim is being deleted and only the finalizer that is kept on purpose holds it: no running pod
    /// uses the claim any more (`kubernetes.io/pvc-protection`).
    pub(super) fn is_last(self, claim: &PersistentVolumeClaim) -> bool {
        let ours = self.flavor.pvc_finalizer();
        self.is_kept
            && claim.metadata.deletion_timestamp.is_some()
            && has_finalizer(&claim.metadata, ours)
            && claim.finalizers().iter().all(|name| name == ours)
    }
}
