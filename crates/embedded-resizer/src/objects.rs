//! Reads and writes the objects of the API server that an expansion or modification needs.

use std::collections::HashMap;

use csi_calls::Secrets;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, SecretReference};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use topolvm_api::CREATED_BY;
use topolvm_api::claim::full_name;
use topolvm_kube::{ReconcileError, none_if_not_found, read_secret};

use crate::claim_changes::ClaimChange;
use crate::error::OperationError;

/// Versions of VolumeAttributesClass: the first is served since Kubernetes 1.34, the second from 1.31 on where it is
/// enabled.
const CLASS_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The objects of the API server.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) client: Client,
    pub(crate) driver: &'static str,
}

/// Outcome of a conditional write.
pub(crate) enum Written {
    /// The claim as it is now.
    Claim(Box<PersistentVolumeClaim>),
    /// Nothing had to be written.
    Unchanged,
    /// The claim is another version by now, or does not exist.
    Conflict,
}

/// The PersistentVolume of a claim.
pub(crate) enum ClaimVolume {
    /// It is of this driver and bound to the claim.
    Own(Box<PersistentVolume>),
    /// It is not bound to the claim.
    Unbound,
    /// It is of another driver.
    Foreign,
}

impl Objects {
    /// Reads a claim again; `None` if it does not exist any more, or another has its name.
    pub(crate) async fn read_claim(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<PersistentVolumeClaim>, ReconcileError> {
        let read = none_if_not_found(self.claims(claim).get(&claim.name_any()).await);
        let read = read.map_err(ReconcileError::api("read PersistentVolumeClaim", full_name(claim)))?;
        Ok(read.filter(|read| read.metadata.uid == claim.metadata.uid))
    }

    /// Writes a change to exactly this version of a claim.
    pub(crate) async fn write_claim(
        &self,
        claim: &PersistentVolumeClaim,
        change: ClaimChange,
    ) -> Result<Written, ReconcileError> {
        let Some(patch) = change.into_patch(claim) else { return Ok(Written::Unchanged) };
        let written = self.claims(claim).patch_status(&claim.name_any(), &params(), &Patch::Merge(patch)).await;
        match written {
            Ok(written) => Ok(Written::Claim(Box::new(written))),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Written::Conflict),
            Err(error) => {
                Err(ReconcileError::api("change the status of PersistentVolumeClaim", full_name(claim))(error))
            }
        }
    }

    /// Writes a change to a claim, computed for the version that it then has. Returns the written claim; `None` if it
    /// does not exist any more.
    pub(crate) async fn write_claim_in_any_version(
        &self,
        mut claim: PersistentVolumeClaim,
        change: impl Fn(&PersistentVolumeClaim) -> ClaimChange,
    ) -> Result<Option<PersistentVolumeClaim>, ReconcileError> {
        loop {
            match self.write_claim(&claim, change(&claim)).await? {
                Written::Claim(written) => return Ok(Some(*written)),
                Written::Unchanged => return Ok(Some(claim)),
                Written::Conflict => match self.read_claim(&claim).await? {
                    Some(read) => claim = read,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Reads the PersistentVolume of a claim.
    pub(crate) async fn read_volume(
        &self,
        claim: &PersistentVolumeClaim,
        name: &str,
    ) -> Result<ClaimVolume, OperationError> {
        let read = none_if_not_found(self.volumes().get(name).await);
        let read = read.map_err(ReconcileError::api("read PersistentVolume", name))?;
        let volume = read.ok_or_else(|| OperationError::VolumeMissing(name.to_owned()))?;
        let spec = volume.spec.as_ref();
        if spec.and_then(|spec| spec.csi.as_ref()).is_none_or(|source| source.driver != self.driver) {
            return Ok(ClaimVolume::Foreign);
        }
        let bound = spec.and_then(|spec| spec.claim_ref.as_ref());
        let is_bound =
            bound.is_some_and(|bound| bound.uid == claim.metadata.uid && bound.namespace == claim.metadata.namespace);
        Ok(if is_bound { ClaimVolume::Own(Box::new(volume)) } else { ClaimVolume::Unbound })
    }

    /// Writes fields of the spec to exactly this PersistentVolume, unless it has been deleted meanwhile.
    pub(crate) async fn write_volume(&self, volume: &PersistentVolume, spec: Value) -> Result<(), ReconcileError> {
        let name = volume.name_any();
        let patch = Patch::Merge(json!({"metadata": {"uid": volume.metadata.uid}, "spec": spec}));
        let written = none_if_not_found(self.volumes().patch(&name, &params(), &patch).await);
        written.map_err(ReconcileError::api("change PersistentVolume", name)).map(drop)
    }

    /// Reads the contents of a Secret; none where none is referred to.
    pub(crate) async fn read_secret(&self, reference: Option<&SecretReference>) -> Result<Secrets, OperationError> {
        let Some(reference) = reference else { return Ok(Secrets::new()) };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        Ok(read_secret(&self.client, namespace, name).await?)
    }

    /// Reads the parameters of a VolumeAttributesClass.
    pub(crate) async fn read_class(&self, class: &str) -> Result<HashMap<String, String>, OperationError> {
        for version in CLASS_VERSIONS {
            let kind = GroupVersionKind::gvk("storage.k8s.io", version, "VolumeAttributesClass");
            let resource = ApiResource::from_gvk_with_plural(&kind, "volumeattributesclasses");
            let classes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            // Also where the version is not served
            let read = none_if_not_found(classes.get(class).await);
            let Some(read) = read.map_err(ReconcileError::api("read VolumeAttributesClass", class))? else { continue };
            let driver = read.data.get("driverName").and_then(Value::as_str).unwrap_or_default();
            if driver != self.driver {
                let (class, driver) = (class.to_owned(), driver.to_owned());
                return Err(OperationError::ClassOfOtherDriver { class, driver });
            }
            let parameters = read.data.get("parameters").and_then(Value::as_object).into_iter().flatten();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Ok(parameters.map(|(key, value)| (key.clone(), text(value))).collect());
        }
        Err(OperationError::ClassMissing(class.to_owned()))
    }

    fn claims(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() }
}
