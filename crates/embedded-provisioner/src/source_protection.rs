//! Finalizers that keep the source of a copy until the copy exists.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PatchParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use topolvm_api::CREATED_BY;
use topolvm_kube::{ReconcileError, add_finalizer, json_patch, none_if_not_found, remove_finalizers};

use crate::volume_snapshot::VolumeSnapshot;

/// The finalizer of a claim that is being cloned.
pub(crate) const CLONING_FINALIZER: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// The finalizer of a VolumeSnapshot that is being restored.
pub(crate) const RESTORING_FINALIZER: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";

/// Adds the finalizer of a claim that is being cloned.
pub(crate) async fn protect_claim(client: &Client, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
    protect(client, claim, CLONING_FINALIZER, "protect claim").await
}

/// Removes the finalizer of a claim that is not cloned any more.
pub(crate) async fn release_claim(client: &Client, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
    release(client, claim, CLONING_FINALIZER, "release claim").await
}

/// Adds the finalizer of a snapshot that is being restored.
pub(crate) async fn protect_snapshot(client: &Client, snapshot: &VolumeSnapshot) -> Result<(), ReconcileError> {
    protect(client, snapshot, RESTORING_FINALIZER, "protect VolumeSnapshot").await
}

/// Removes the finalizer of a snapshot that is not restored any more.
pub(crate) async fn release_snapshot(client: &Client, snapshot: &VolumeSnapshot) -> Result<(), ReconcileError> {
    release(client, snapshot, RESTORING_FINALIZER, "release VolumeSnapshot").await
}

/// Adds the finalizer, unless the object has it. One that has changed meanwhile is an error, and is read again later.
async fn protect<K>(client: &Client, object: &K, finalizer: &str, action: &'static str) -> Result<(), ReconcileError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let operations = add_finalizer(object.meta(), finalizer);
    if operations.is_empty() {
        return Ok(());
    }
    let patched = api(client, object).patch(&object.name_any(), &params(), &json_patch(operations)).await;
    patched.map(|_: K| ()).map_err(ReconcileError::api(action, full_name(object)))
}

/// Removes the finalizer of exactly this object.
async fn release<K>(client: &Client, object: &K, finalizer: &str, action: &'static str) -> Result<(), ReconcileError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let operations = remove_finalizers(object.meta(), &[finalizer]);
    if operations.is_empty() {
        return Ok(());
    }
    let patched = api(client, object).patch(&object.name_any(), &params(), &json_patch(operations)).await;
    none_if_not_found(patched).map(|_: Option<K>| ()).map_err(ReconcileError::api(action, full_name(object)))
}

fn api<K>(client: &Client, object: &K) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

fn full_name(object: &impl Resource) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() }
}
