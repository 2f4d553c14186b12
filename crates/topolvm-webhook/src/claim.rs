//! The claim webhook, `/pvc/mutate`: puts the finalizer on new claims of this driver.

use json_patch::Patch;
use json_patch::jsonptr::PointerBuf;
use serde_json::json;
use topolvm_api::ApiFlavor;

use crate::admission_review::{Decision, MutateError};
use crate::objects::Claim;
use crate::patch::add;
use crate::storage_class_informer::StorageClassInformer;

/// The claim webhook.
#[derive(Clone)]
pub(crate) struct ClaimWebhook {
    pub(crate) flavor: ApiFlavor,
    pub(crate) classes: StorageClassInformer,
    /// True if claims get the finalizer. They are not changed without this setting, because no controller would remove
    /// it.
    pub(crate) finalizer: bool,
}

impl ClaimWebhook {
    /// Decides about a new claim. The class that a claim without one gets is in it already: the API server's own
    /// admission plugins come before webhooks.
    pub(crate) async fn mutate(&self, claim: &Claim) -> Result<Decision, MutateError> {
        let spec = claim.spec.as_ref().ok_or(MutateError::Incomplete("spec"))?;
        if !self.finalizer {
            return Ok(Decision::Unchanged);
        }
        if self.classes.find_own(spec.class.as_deref()).await?.is_none() {
            return Ok(Decision::Unchanged);
        }
        let finalizer = self.flavor.pvc_finalizer();
        Ok(match &claim.metadata.finalizers {
            Some(finalizers) if finalizers.has(self.flavor) => Decision::Unchanged,
            Some(_) => {
                let end = PointerBuf::from_tokens(["metadata", "finalizers", "-"]);
                Decision::Patched(Patch(vec![add(end, finalizer.into())]))
            }
            None => {
                let all = PointerBuf::from_tokens(["metadata", "finalizers"]);
                Decision::Patched(Patch(vec![add(all, json!([finalizer]))]))
            }
        })
    }
}
