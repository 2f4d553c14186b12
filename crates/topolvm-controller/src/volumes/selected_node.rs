//! Finds out whether the scheduler has chosen a node for the claim of a new volume, or any node will do.
//!
//! external-provisioner reports it only with `--strict-topology`, by naming that node alone. Without it the request
//! names all nodes of the cluster, with one in front: for a claim that waits for its first consumer the node that the
//! scheduler has chosen for the pod, for one that binds immediately a node by the hash of the claim's name. So the
//! claim itself is read, but only when it matters: when the volume would not be created on the node in front.

use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use topolvm_api::SELECTED_NODE;
use topolvm_kube::list_in_pages;

use super::error::ApiFailure;
use super::{NodeChoice, Placement, VolumeError, VolumeRequest};

/// Namespace and name of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl NodeChoice {
    /// Returns the nodes on which the volume may be made, when the first may not do: that one alone if the scheduler
    /// has chosen it, because its pod may not be able to run elsewhere.
    pub(super) async fn narrow_to_selected_node(&self, request: &VolumeRequest) -> Result<Placement, VolumeError> {
        match &request.placement {
            Placement::Nodes { first, others } if !others.is_empty() && !self.binds_immediately(request).await? => {
                Ok(Placement::only(first))
            }
            placement @ (Placement::Nodes { .. } | Placement::Anywhere) => Ok(placement.clone()),
        }
    }

    /// Returns whether it is certain that no node was chosen for the claim of this volume, and that none will be.
    async fn binds_immediately(&self, request: &VolumeRequest) -> Result<bool, VolumeError> {
        let unknown =
            |source| VolumeError::ClaimUnreadable { name: request.name.clone(), source: ApiFailure::from(source) };
        let claim = match &request.claim {
            Some(ClaimName { namespace, name }) => {
                Api::namespaced(self.objects.client.clone(), namespace).get_opt(name).await.map_err(unknown)?
            }
            None => self.claim_of(&request.name).await.map_err(unknown)?,
        };
        // Without a claim the volume is not needed any more, or it is named in a way that we do not know
        let Some(claim): Option<PersistentVolumeClaim> = claim else { return Ok(false) };
        if claim.metadata.annotations.is_some_and(|annotations| annotations.contains_key(SELECTED_NODE)) {
            return Ok(false);
        }
        // The annotation is also missing while the scheduler chooses again
        let Some(class) = claim.spec.and_then(|spec| spec.storage_class_name) else { return Ok(false) };
        let classes: Api<StorageClass> = Api::all(self.objects.client.clone());
        // Listing is all that the ClusterRole allows
        let named = ListParams::default().fields(&format!("metadata.name={class}"));
        let found = classes.list(&named).await.map_err(unknown)?.items.into_iter().next();
        Ok(found.is_some_and(|class| class.volume_binding_mode.is_none_or(|mode| mode == "Immediate")))
    }

    /// The claim whose UID is the end of this name, as external-provisioner names volumes unless its
    /// `--volume-name-uuid-length` shortens them. Claims cannot be selected by UID.
    async fn claim_of(&self, volume: &str) -> kube::Result<Option<PersistentVolumeClaim>> {
        let api: Api<PartialObjectMeta<PersistentVolumeClaim>> = Api::all(self.objects.client.clone());
        let mut claims = pin!(list_in_pages(&api, ListParams::default()));
        while let Some(found) = claims.try_next().await? {
            let uid = found.metadata.uid;
            if uid.as_ref().is_none_or(|uid| uid.is_empty() || !volume.ends_with(uid.as_str())) {
                continue;
            }
            let namespace = found.metadata.namespace.unwrap_or_default();
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.objects.client.clone(), &namespace);
            let claim = api.get_opt(&found.metadata.name.unwrap_or_default()).await?;
            return Ok(claim.filter(|claim| claim.metadata.uid == uid));
        }
        Ok(None)
    }
}
