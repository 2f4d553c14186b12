//! Assigns to an object the LV that its annotation names, instead of a new one: an administrator restores a volume
//! whose object was gone.

use lvmd_client::{Lv, to_wire};
use lvmd_config::tags::{object_uid, quarantined_uid};
use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes, tag_value};
use topolvm_proto::lvmd::AdoptLvRequest;
use topolvm_runtime::grpc::GrpcCode as _;

use super::ReconcileError;
use super::creation::{Created, Creation};

impl Creation {
    /// Renames the LV to the UID of the object, unless something refers to the volume by its present name.
    ///
    /// Unlike a new LV it stays when the object is gone before its status is written: it is an orphan again.
    pub(super) async fn adopt(&self, volume: &LogicalVolume, lv: &str) -> Result<Created, ReconcileError> {
        let bytes = match self.adopted_bytes(volume, lv).await? {
            Some(bytes) => Ok(bytes),
            None => parse_bytes(&volume.spec.size).map_err(|error| error.to_string()),
        };
        let size_bytes = match bytes.and_then(|bytes| to_wire(bytes).map_err(|error| error.to_string())) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail_creation(volume, Code::InvalidArgument, &error).await,
        };
        if let Some(owner) = self.owners.find_owner(volume, lv, |_| true).await? {
            let why =
                format!("LV {lv} belongs to LogicalVolume {owner} and cannot be assigned to another LogicalVolume");
            return self.fail_creation(volume, Code::FailedPrecondition, &why).await;
        }
        let id = quarantined_uid(lv).unwrap_or(lv);
        let id = if self.owners.find_reference(id).await?.is_some() { id } else { volume.uid() };
        let request = AdoptLvRequest {
            name: lv.to_owned(),
            device_class: volume.spec.device_class.clone(),
            new_name: id.to_owned(),
            size_bytes,
            tags: self.clients.lvm_tags(volume).await,
        };
        match self.clients.lvmd.adopt(request).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv, id, "assigned the logical volume to the object");
                self.writer.report_volume(volume, id, bytes).await.map(Created::Volume)
            }
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) => self.fail_creation(volume, error.code(), &error.detail()).await,
        }
    }

    /// Returns the size of an LV that was created for an earlier object of this name, whose size in the object may be
    /// that before LVM has rounded it up.
    async fn adopted_bytes(&self, volume: &LogicalVolume, lv: &str) -> Result<Option<u64>, ReconcileError> {
        let class = &volume.spec.device_class;
        let found = match self.clients.lvmd.find(lv, class).await {
            Ok(found) => found,
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            // The adoption fails for the same reason, and its message counts
            Err(_) => return Ok(None),
        };
        let tag = self.clients.flavor.logical_volume_tag();
        let was_made_for = |lv: &Lv| object_uid(&lv.name).is_some() && tag_value(&lv.tags, tag) == Some(volume.name());
        Ok(found.filter(was_made_for).map(|lv| lv.size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use topolvm_api::same_lv;

    #[test]
    fn quarantine_names_of_lvmd_and_of_the_plugin_agree() {
        let uid = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
        assert!(same_lv(lvmd_config::tags::quarantine_name(uid).unwrap().as_str(), uid));
    }
}
