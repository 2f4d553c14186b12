//! Gives an object the LV that its annotation names, instead of a new one: somebody restores a volume whose object was
//! gone.

use std::sync::Arc;

use futures::TryStreamExt as _;
use kube::api::{ListParams, PatchParams};
use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_kube::{json_patch, set_annotation, take_annotation_off};
use topolvm_proto::lvmd::AdoptLvRequest;
use topolvm_runtime::grpc::GrpcCode as _;

use super::status::with_deadline;
use super::{ReconcileError, Reconciler};
use crate::events::FIELD_MANAGER;
use crate::lvmd_client::to_wire;

impl Reconciler {
    /// Renames the LV to the UID of the object. Returns the object with its volume, or `None` if it cannot have it.
    ///
    /// Unlike a new LV it stays when the object is gone before its status is written: it is an orphan again.
    pub(super) async fn adopt(
        &self,
        volume: &LogicalVolume,
        lv: &str,
    ) -> Result<Option<Arc<LogicalVolume>>, ReconcileError> {
        let size = parse_bytes(&volume.spec.size).map_err(|error| error.to_string());
        let size_bytes = match size.and_then(|bytes| to_wire(bytes).map_err(|error| error.to_string())) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail_creation(volume, Code::InvalidArgument, &error).await,
        };
        if let Some(owner) = self.find_owner(volume, lv).await? {
            let why = format!("LV {lv} is that of LogicalVolume {owner}, and no other can have it");
            return self.fail_creation(volume, Code::FailedPrecondition, &why).await;
        }
        let request = AdoptLvRequest {
            name: lv.to_owned(),
            device_class: volume.spec.device_class.clone(),
            new_name: volume.uid().to_owned(),
            size_bytes,
            tags: self.lvm_tags(volume).await,
        };
        match self.lvmd.adopt(request).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv, uid = volume.uid(), "the object has got the logical volume");
                self.report_size(volume, bytes).await.map(Some)
            }
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) => self.fail_creation(volume, error.code(), &error.detail()).await,
        }
    }

    /// Replaces the request for an LV by a record of it, once the object has the LV: a copy of the object without its
    /// status, and a tool that repeats its work, must not ask for the LV again.
    pub(super) async fn record_adoption(
        &self,
        volume: Arc<LogicalVolume>,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let Some(lv) = volume.annotation(self.flavor.adopt()) else { return Ok(volume) };
        let mut operations = set_annotation(&volume.metadata, self.flavor.adopted(), lv);
        operations.extend(take_annotation_off(&volume.metadata, self.flavor.adopt(), lv, None));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json_patch(operations);
        let patched = with_deadline("record the adoption", self.api.patch(volume.name(), &params, &patch)).await?;
        Ok(self.write_cache.insert(patched))
    }

    /// Asks the API server for another object that has this LV, on whatever node, and returns its name.
    async fn find_owner(&self, volume: &LogicalVolume, lv: &str) -> Result<Option<String>, ReconcileError> {
        let uid = lvmd::quarantined_uid(lv).unwrap_or(lv);
        let is_owner = |other: &LogicalVolume| {
            other.uid() != volume.uid() && (other.uid() == uid || other.volume_id().is_some_and(|id| id == lv))
        };
        let search = async {
            let mut all = std::pin::pin!(topolvm_kube::list_in_pages(&self.api, ListParams::default()));
            while let Some(other) = all.try_next().await? {
                if is_owner(&other) {
                    return Ok(Some(other.name().to_owned()));
                }
            }
            Ok(None)
        };
        with_deadline("look for another object of the LV", search).await
    }
}

#[cfg(test)]
mod tests {
    use topolvm_api::same_lv;

    #[test]
    fn quarantine_names_of_lvmd_and_of_the_plugin_agree() {
        let uid = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
        assert!(same_lv(lvmd::quarantine_name(uid).unwrap().as_str(), uid));
    }
}
