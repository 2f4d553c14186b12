//! Holds a claim with a finalizer while the outcome of an attempt to create its volume is not known. The memory of this
//! process ends with it; a claim that is held and deleted shows the next process that there may be a volume.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PatchParams;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use topolvm_api::CREATED_BY;
use topolvm_api::claim::full_name;
use topolvm_kube::{
    Cache, CachedClaim, ReconcileError, add_finalizer, has_finalizer, json_patch, none_if_not_found, remove_finalizers,
};
use topolvm_runtime::error_chain;

use crate::Provisioner;

/// The finalizer of a held claim.
const FINALIZER: &str = "topolvm.io/provisioning";

/// Returns whether the claim is held.
pub(crate) fn is_held(claim: &PersistentVolumeClaim) -> bool {
    has_finalizer(claim.meta(), FINALIZER)
}

impl Provisioner {
    /// Holds a claim, unless it is gone or being deleted. A failure is logged: the next attempt holds the claim, too.
    pub(crate) async fn hold(&self, uid: &str) {
        let Some(claim) = self.claims.get(uid).map(|pending| pending.object) else { return };
        if is_held(&claim) || claim.meta().deletion_timestamp.is_some() {
            return;
        }
        let operations = add_finalizer(claim.meta(), FINALIZER);
        let patch = json_patch(operations);
        match api(&self.context.client, &claim).patch(&claim.name_any(), &params(), &patch).await {
            Ok(held) => self.claims.note_written(&held),
            Err(error) => {
                tracing::warn!(claim = full_name(&claim), error = error_chain(&error), "cannot hold a claim");
            }
        }
    }

    /// Releases a claim whose outcome is known.
    pub(crate) async fn unhold(&self, uid: &str) -> Result<(), ReconcileError> {
        let Some(claim) = self.claims.get(uid).map(|pending| pending.object) else { return Ok(()) };
        if let Some(released) = release(&self.context.client, &claim).await? {
            self.claims.note_written(&released);
        }
        Ok(())
    }
}

/// Releases all claims that a provisioner has held which does not run any more. `claims` has the finalizers of all
/// claims of the driver.
pub async fn release_held_claims(client: Client, claims: Cache<CachedClaim>) {
    // False only when the process ends
    if !claims.wait_until_listed().await {
        return;
    }
    for claim in claims.state().iter().filter(|claim| claim.has_finalizer(FINALIZER)) {
        match release(&client, &claim.to_object()).await {
            Ok(_) => tracing::info!(claim = claim.full_name(), "released a claim of the embedded provisioner"),
            Err(error) => {
                tracing::warn!(claim = claim.full_name(), error = error_chain(&error), "cannot release a claim");
            }
        }
    }
}

/// Removes the finalizer, and returns the claim as it is then, unless it is gone or was not held.
async fn release(
    client: &Client,
    claim: &PersistentVolumeClaim,
) -> Result<Option<PersistentVolumeClaim>, ReconcileError> {
    let operations = remove_finalizers(claim.meta(), &[FINALIZER]);
    if operations.is_empty() {
        return Ok(None);
    }
    let released = api(client, claim).patch(&claim.name_any(), &params(), &json_patch(operations)).await;
    none_if_not_found(released).map_err(ReconcileError::api("release claim", full_name(claim)))
}

fn api(client: &Client, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
    Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default())
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() }
}
