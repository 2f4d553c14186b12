//! Deletes a claim and the pods that use it, so that their StatefulSet recreates both.
//!
//! A finalizer of ours holds the claim meanwhile: a pod that waits for a deleted claim would wait forever, and a claim
//! that still exists shows the next leader that its pods are to be deleted. The StatefulSet controller creates no pod
//! while the claim is being deleted.

use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use topolvm_api::REBUILDING_FINALIZERS;
use topolvm_api::claim::{full_name, is_mounted_by};
use topolvm_kube::{
    CachedClaim, ReconcileError, add_finalizer, json_patch, list_in_pages, none_if_deleted, none_if_not_found,
    remove_finalizers,
};

use super::RebuildContext;
use super::candidate::Candidate;

/// Deletes the claim of a node that is proven to be lost, and then its pods. Each write names the object and the
/// version that were read for the proof.
pub(super) async fn replace_claim(
    context: &RebuildContext,
    candidate: &Candidate,
    note: &str,
) -> Result<(), ReconcileError> {
    let claim = &candidate.claim;
    if candidate.policy.keeps_volume {
        keep_volume(context, &candidate.persistent).await?;
    }
    let (api, name) = (claim_api(context, claim), claim.name_any());
    let mut version = claim.resource_version();
    let held = add_finalizer(&claim.metadata, context.flavor.rebuilding());
    if !held.is_empty() {
        let written = api.patch_metadata(&name, &PatchParams::default(), &json_patch(held)).await;
        version =
            written.map_err(ReconcileError::api("add the finalizer to claim", full_name(claim)))?.resource_version();
    }
    let exactly = Preconditions { uid: claim.uid(), resource_version: version };
    let deleted = api.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
    deleted.map_err(ReconcileError::api("delete claim", full_name(claim)))?;
    tracing::warn!(claim = full_name(claim), node = candidate.node, "deleted a claim of a lost node: its data is lost");
    context.events.publish_warning(&claim.object_ref(&()), "Rebuilding", "DeleteClaim", note.to_owned()).await;
    finish_replacement(context, claim).await
}

/// Deletes the pods that still use the claim, or, where there are none any more, lets the claim go.
pub(super) async fn finish_replacement(
    context: &RebuildContext,
    seen: &PersistentVolumeClaim,
) -> Result<(), ReconcileError> {
    let api = claim_api(context, seen);
    let found = api.get_metadata_opt(&seen.name_any()).await;
    let found = found.map_err(ReconcileError::api("read claim", full_name(seen)))?;
    // Another of the name is not concerned
    let is_this =
        |metadata: &kube::core::ObjectMeta| metadata.uid == seen.metadata.uid && metadata.deletion_timestamp.is_some();
    let Some(claim) = found.filter(|claim| is_this(&claim.metadata)) else { return Ok(()) };
    // A pod that the StatefulSet controller was about to make is found on the next observation
    if delete_pods(context, seen).await? > 0 {
        return Ok(());
    }
    release_claim(context, seen, &claim.metadata).await
}

/// Returns whether a claim has our finalizer, also that of the other API group.
pub(super) fn is_held(claim: &CachedClaim) -> bool {
    REBUILDING_FINALIZERS.iter().any(|name| claim.has_finalizer(name))
}

/// Releases a claim if claims are not to be recreated any more. Its pods are deleted first, if the component `rebuild`
/// still allows that.
pub(super) async fn abandon_replacement(
    context: &RebuildContext,
    claim: &PersistentVolumeClaim,
) -> Result<(), ReconcileError> {
    if claim.metadata.deletion_timestamp.is_some() {
        match finish_replacement(context, claim).await {
            Err(error) if error.is_forbidden() => {}
            finished => return finished,
        }
    }
    release_claim(context, claim, &claim.metadata).await?;
    tracing::warn!(
        claim = full_name(claim),
        "removed the finalizer of a claim that was being recreated; --rebuild-claims is disabled"
    );
    Ok(())
}

/// Removes our finalizers from the claim.
pub(super) async fn release_claim(
    context: &RebuildContext,
    claim: &PersistentVolumeClaim,
    metadata: &kube::core::ObjectMeta,
) -> Result<(), ReconcileError> {
    let released = remove_finalizers(metadata, &REBUILDING_FINALIZERS);
    if released.is_empty() {
        return Ok(());
    }
    let api = claim_api(context, claim);
    let written = api.patch_metadata(&claim.name_any(), &PatchParams::default(), &json_patch(released)).await;
    none_if_not_found(written)
        .map_err(ReconcileError::api("remove the finalizer from claim", full_name(claim)))
        .map(drop)
}

/// Has the PersistentVolume stay when its claim goes.
async fn keep_volume(context: &RebuildContext, persistent: &PersistentVolume) -> Result<(), ReconcileError> {
    let name = persistent.name_any();
    let keep = json!({
        "metadata": {"resourceVersion": persistent.resource_version()},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"},
    });
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(&keep)).await;
    written.map_err(ReconcileError::api("keep PersistentVolume", &name)).map(drop)
}

/// Deletes the pods of StatefulSets that use the claim, and returns how many. Others are left to their owners. None is
/// deleted by force: when a node is out of service or gone, Kubernetes itself ends the pods that cannot end.
async fn delete_pods(context: &RebuildContext, claim: &PersistentVolumeClaim) -> Result<usize, ReconcileError> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &claim.namespace().unwrap_or_default());
    let failed = || ReconcileError::api("list the pods in the namespace of claim", full_name(claim));
    let mut pods = pin!(list_in_pages(&api, ListParams::default()));
    let mut count = 0;
    while let Some(pod) = pods.try_next().await.map_err(failed())? {
        if !is_mounted_by(&claim.name_any(), &pod) || !is_of_stateful_set(&pod) {
            continue;
        }
        count += 1;
        let exactly = Preconditions { uid: pod.uid(), resource_version: None };
        let deleted = api.delete(&pod.name_any(), &DeleteParams::default().preconditions(exactly)).await;
        none_if_deleted(deleted).map_err(ReconcileError::api("delete pod", pod.name_any()))?;
        tracing::info!(pod = pod.name_any(), claim = full_name(claim), "deleted a pod whose claim is being recreated");
        let note = format!(
            "claim {} is recreated empty, because its node is lost with its data; the pod is deleted so that its \
             StatefulSet recreates both",
            claim.name_any()
        );
        context.events.publish_warning(&pod.object_ref(&()), "Rebuilding", "DeletePod", note).await;
    }
    Ok(count)
}

fn is_of_stateful_set(pod: &Pod) -> bool {
    pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.kind == "StatefulSet")
}

fn claim_api(context: &RebuildContext, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
    Api::namespaced(context.client.clone(), &claim.namespace().unwrap_or_default())
}
