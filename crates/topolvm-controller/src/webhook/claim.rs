//! `/pvc/mutate`: puts our finalizer on new claims of ours.

use json_patch::Patch;
use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use kube::core::DynamicObject;
use serde::Deserialize as _;
use serde_json::json;
use topolvm_api::ApiFlavor;

use super::admission::{MutateError, Verdict};
use super::patch::add;
use super::storage_classes::StorageClasses;

/// Answers `/pvc/mutate`.
#[derive(Clone)]
pub(crate) struct ClaimWebhook {
    pub(crate) flavor: ApiFlavor,
    pub(crate) classes: StorageClasses,
    /// Whether the finalizer is wanted. Claims are left alone when it is not, because nobody would take it off again.
    pub(crate) finalizer: bool,
}

impl ClaimWebhook {
    /// What to do with a new claim. The class that a claim without one gets is in it already: the API server's own admission
    /// plugins come before webhooks.
    pub(crate) async fn mutate(&self, claim: &DynamicObject) -> Result<Verdict, MutateError> {
        let spec = claim.data.get("spec").ok_or(MutateError::Incomplete("spec"))?;
        let spec = PersistentVolumeClaimSpec::deserialize(spec).map_err(MutateError::Malformed)?;
        if !self.finalizer {
            return Ok(Verdict::Unchanged);
        }
        let class = match spec.storage_class_name.as_deref() {
            None | Some("") => None,
            Some(name) => self.classes.ours(name).await?,
        };
        let finalizer = self.flavor.pvc_finalizer();
        Ok(match (class, &claim.metadata.finalizers) {
            (None, _) => Verdict::Unchanged,
            (Some(_), Some(finalizers)) if finalizers.iter().any(|name| name == finalizer) => Verdict::Unchanged,
            (Some(_), Some(_)) => {
                let end = PointerBuf::from_tokens(["metadata", "finalizers", "-"]);
                Verdict::Patched(Patch(vec![add(end, finalizer.into())]))
            }
            (Some(_), None) => {
                let all = PointerBuf::from_tokens(["metadata", "finalizers"]);
                Verdict::Patched(Patch(vec![add(all, json!([finalizer]))]))
            }
        })
    }
}
