//! An attempt to create a volume: all that is needed to repeat it until its outcome is known, also when the claim, its
//! StorageClass or its node are gone by then.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Resource as _, ResourceExt as _};
use topolvm_api::claim::selected_node;
use topolvm_proto::csi::CreateVolumeRequest;

use crate::secret_reference::{
    CONTROLLER_EXPAND, CONTROLLER_MODIFY, CONTROLLER_PUBLISH, NODE_EXPAND, NODE_PUBLISH, NODE_STAGE, PROVISIONER,
    SecretError,
};

/// An attempt to create the volume of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) claim: Arc<PersistentVolumeClaim>,
    pub(crate) class: Arc<StorageClass>,
    /// The filesystem for the PersistentVolume.
    pub(crate) filesystem: String,
    pub(crate) secrets: VolumeSecrets,
    pub(crate) request: CreateVolumeRequest,
}

/// The Secrets that the StorageClass names for the volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VolumeSecrets {
    pub(crate) provisioner: Option<SecretReference>,
    pub(crate) controller_publish: Option<SecretReference>,
    pub(crate) node_stage: Option<SecretReference>,
    pub(crate) node_publish: Option<SecretReference>,
    pub(crate) controller_expand: Option<SecretReference>,
    pub(crate) node_expand: Option<SecretReference>,
    pub(crate) controller_modify: Option<SecretReference>,
}

impl Attempt {
    /// Returns the UID of the claim.
    pub(crate) fn uid(&self) -> &str {
        self.claim.meta().uid.as_deref().unwrap_or_default()
    }

    /// Returns the node that the scheduler had selected.
    pub(crate) fn selected_node(&self) -> Option<&str> {
        selected_node(&self.claim).filter(|node| !node.is_empty())
    }

    /// Returns the name of the StorageClass.
    pub(crate) fn class_name(&self) -> String {
        self.class.name_any()
    }
}

impl VolumeSecrets {
    /// Resolves the references in the parameters of the StorageClass.
    pub(crate) fn resolve(
        class: &StorageClass,
        volume: &str,
        claim: &PersistentVolumeClaim,
    ) -> Result<Self, SecretError> {
        Ok(Self {
            provisioner: PROVISIONER.resolve(class, volume, claim)?,
            controller_publish: CONTROLLER_PUBLISH.resolve(class, volume, claim)?,
            node_stage: NODE_STAGE.resolve(class, volume, claim)?,
            node_publish: NODE_PUBLISH.resolve(class, volume, claim)?,
            controller_expand: CONTROLLER_EXPAND.resolve(class, volume, claim)?,
            node_expand: NODE_EXPAND.resolve(class, volume, claim)?,
            controller_modify: CONTROLLER_MODIFY.resolve(class, volume, claim)?,
        })
    }
}
