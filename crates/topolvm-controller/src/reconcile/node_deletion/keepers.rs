//! The PersistentVolumes of a deleted Node, which keep their volumes when they outlive their claims: the node may come
//! back with its disks, and the PersistentVolume then needs the LogicalVolume.

use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::{LogicalVolume, waits_for_removal};
use topolvm_kube::{ReconcileError, list_in_pages};

use super::has_id;

/// The PersistentVolumes of a Node's volumes.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    persistent: Vec<KeptVolume>,
}

/// A PersistentVolume of the driver.
#[derive(Debug)]
struct KeptVolume {
    name: String,
    handle: String,
    is_retained: bool,
    waits_for_removal: bool,
    claim: Option<ObjectReference>,
}

impl Keepers {
    /// Lists those of a driver that refer to these volumes. Their names may be any: csi-provisioner names a
    /// PersistentVolume like the volume that it asked for, and an administrator as he likes.
    pub(super) async fn list(client: &Client, driver: &str, volumes: &[LogicalVolume]) -> Result<Self, ReconcileError> {
        let mut keepers = Self::default();
        if volumes.is_empty() {
            return Ok(keepers);
        }
        let api: Api<PersistentVolume> = Api::all(client.clone());
        let mut listed = pin!(list_in_pages(&api, ListParams::default()));
        let failed = || ReconcileError::api("list", "the PersistentVolumes");
        while let Some(persistent) = listed.try_next().await.map_err(failed())? {
            let found = KeptVolume::new(driver, persistent);
            keepers.persistent.extend(found.filter(|one| volumes.iter().any(|volume| has_id(volume, &one.handle))));
        }
        Ok(keepers)
    }

    /// Returns whether one of the PersistentVolumes has this name.
    pub(super) fn has_persistent_volume(&self, name: &str) -> bool {
        self.persistent.iter().any(|one| one.name == name)
    }

    /// Returns the volume handles of the PersistentVolumes whose names fulfil the condition.
    pub(super) fn handles(&self, condition: impl Fn(&str) -> bool) -> Vec<&str> {
        self.persistent.iter().filter(|one| condition(&one.name)).map(|one| one.handle.as_str()).collect()
    }

    /// Returns the name of the PersistentVolume that keeps a volume. Claims were deleted before.
    pub(super) async fn find(&self, client: &Client, volume: &LogicalVolume) -> Result<Option<String>, ReconcileError> {
        for one in self.persistent.iter().filter(|one| has_id(volume, &one.handle)) {
            if !one.waits_for_removal && (one.is_retained || !one.will_be_released(client).await?) {
                return Ok(Some(one.name.clone()));
            }
        }
        Ok(None)
    }
}

impl KeptVolume {
    fn new(driver: &str, persistent: PersistentVolume) -> Option<Self> {
        let waits_for_removal = waits_for_removal(&persistent);
        let name = persistent.name_any();
        let spec = persistent.spec?;
        let csi = spec.csi.filter(|csi| csi.driver == driver)?;
        Some(Self {
            name,
            handle: csi.volume_handle,
            is_retained: spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete"),
            waits_for_removal,
            claim: spec.claim_ref,
        })
    }

    /// Returns whether the claim that had the PersistentVolume is gone or going, which releases it.
    async fn will_be_released(&self, client: &Client) -> Result<bool, ReconcileError> {
        let Some(claim) = self.claim.as_ref().filter(|claim| claim.uid.is_some()) else { return Ok(false) };
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(client.clone(), claim.namespace.as_deref().unwrap_or_default());
        let name = claim.name.as_deref().unwrap_or_default();
        let found = api.get_metadata_opt(name).await.map_err(ReconcileError::api("read claim", name))?;
        let is_live =
            |metadata: &kube::api::ObjectMeta| metadata.uid == claim.uid && metadata.deletion_timestamp.is_none();
        Ok(!found.is_some_and(|found| is_live(&found.metadata)))
    }
}
