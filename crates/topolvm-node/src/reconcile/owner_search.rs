//! Finds what an LV belongs to: another LogicalVolume, a PersistentVolume, a VolumeSnapshotContent.

use std::sync::Arc;

use futures::TryStreamExt as _;
use kube::api::ListParams;
use topolvm_api::LogicalVolume;
use topolvm_kube::VolumeReference;

use super::ReconcileError;
use super::clients::Clients;
use super::object_writer::with_deadline;

/// Name of a request that asks what refers to a volume.
pub(super) const SEARCH_REFERENCES: &str = "search for objects that refer to the volume";

/// Searches for the owners of LVs at the API server, never in a cache.
#[derive(Debug)]
pub(super) struct OwnerSearch {
    pub(super) clients: Arc<Clients>,
}

impl OwnerSearch {
    /// Asks the API server for another object that has this LV and meets the condition, on whatever node, and returns
    /// its name.
    pub(super) async fn find_owner(
        &self,
        volume: &LogicalVolume,
        lv: &str,
        condition: impl Fn(&LogicalVolume) -> bool,
    ) -> Result<Option<String>, ReconcileError> {
        let uid = lvmd_config::tags::quarantined_uid(lv).unwrap_or(lv);
        let is_owner = |other: &LogicalVolume| {
            let names_it = other.volume_id().is_some_and(|id| id == lv || id == uid);
            other.uid() != volume.uid() && (other.uid() == uid || names_it) && condition(other)
        };
        let search = async {
            let mut all = std::pin::pin!(topolvm_kube::list_in_pages(&self.clients.api, ListParams::default()));
            while let Some(other) = all.try_next().await? {
                if is_owner(&other) {
                    return Ok(Some(other.name().to_owned()));
                }
            }
            Ok(None)
        };
        with_deadline("search for another object of the LV", search).await
    }

    /// Finds what refers to the volume that has or had this name in LVM.
    pub(super) async fn find_reference(&self, id: &str) -> Result<Option<VolumeReference>, ReconcileError> {
        let found = self.clients.references.search(id).await;
        found.map_err(|source| ReconcileError::Api { action: SEARCH_REFERENCES, source })
    }

    /// Finds the volume handle in the PersistentVolume of the object.
    pub(super) async fn find_volume_handle(&self, volume: &LogicalVolume) -> Result<Option<String>, ReconcileError> {
        let found = self.clients.references.find_volume_handle(volume.name()).await;
        found.map_err(|source| ReconcileError::Api { action: "read the PersistentVolume of the object", source })
    }
}
