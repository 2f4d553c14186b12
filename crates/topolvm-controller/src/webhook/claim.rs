//! `/pvc/mutate`: puts our finalizer on new claims of ours.

use json_patch::Patch;
use json_patch::jsonptr::PointerBuf;
use serde_json::json;
use topolvm_api::ApiFlavor;

use super::admission_review::{MutateError, Verdict};
use super::objects::Claim;
use super::patch::add;
use super::storage_class_informer::StorageClasses;

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
    pub(crate) async fn mutate(&self, claim: &Claim) -> Result<Verdict, MutateError> {
        let spec = claim.spec.as_ref().ok_or(MutateError::Incomplete("spec"))?;
        if !self.finalizer {
            return Ok(Verdict::Unchanged);
        }
        let class = match spec.class.as_deref() {
            None | Some("") => None,
            Some(name) => self.classes.ours(name).await?,
        };
        if class.is_none() {
            return Ok(Verdict::Unchanged);
        }
        let finalizer = self.flavor.pvc_finalizer();
        Ok(match &claim.metadata.finalizers {
            Some(finalizers) if finalizers.has(self.flavor) => Verdict::Unchanged,
            Some(_) => {
                let end = PointerBuf::from_tokens(["metadata", "finalizers", "-"]);
                Verdict::Patched(Patch(vec![add(end, finalizer.into())]))
            }
            None => {
                let all = PointerBuf::from_tokens(["metadata", "finalizers"]);
                Verdict::Patched(Patch(vec![add(all, json!([finalizer]))]))
            }
        })
    }
}
