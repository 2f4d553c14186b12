//! Finds the object of a volume id.
//!
//! An id that the informer does not know may still exist: it can lag behind another replica that has just answered
//! `CreateVolume`. "Not found" makes `DeleteVolume` succeed, and would then leak the volume, so that only the API
//! server decides it. That costs one LIST with a selector, whose answer has at most one object.

use topolvm_api::LogicalVolume;
use topolvm_kube::list_selected;

use super::objects::api_error;
use super::{Volume, VolumeError, VolumeKind, VolumeObjects};

/// The field that our CustomResourceDefinition makes selectable.
const VOLUME_ID_FIELD: &str = "status.volumeID";

impl VolumeObjects {
    /// Finds the object of a volume or snapshot id and reads it from the API server; `None` if there is none.
    pub(super) async fn find(&self, kind: VolumeKind, id: &str) -> Result<Option<LogicalVolume>, VolumeError> {
        Ok(self.find_any(id).await?.filter(|object| VolumeKind::from_object(object) == kind))
    }

    /// Finds the object of a volume or snapshot id, unless it is being deleted.
    pub(super) async fn find_live(&self, kind: VolumeKind, id: &str) -> Result<LogicalVolume, VolumeError> {
        let found = self.find(kind, id).await?.filter(|object| !object.is_deleting());
        found.ok_or_else(|| VolumeError::NotFound { kind, id: id.to_owned() })
    }

    /// Reads the volume or snapshot with this id from the API server.
    pub(crate) async fn get_by_id(&self, kind: VolumeKind, id: &str) -> Result<Volume, VolumeError> {
        let object = self.find_live(kind, id).await?;
        Volume::from_object(self.flavor, &object, &self.informer)
            .ok_or_else(|| VolumeError::NotFound { kind, id: id.to_owned() })
    }

    async fn find_any(&self, id: &str) -> Result<Option<LogicalVolume>, VolumeError> {
        let has_id = |volume: &LogicalVolume| volume.volume_id() == Some(id);
        if let Some(cached) = self.informer.cache.find(id) {
            // A UID is never used twice: if this object is another one by now, the volume is gone
            return Ok(self.read(cached.name()).await?.filter(has_id));
        }
        let selected = format!("{VOLUME_ID_FIELD}={id}");
        let found = list_selected(&self.api(), &selected, has_id).await.map_err(api_error("find the", id))?;
        // Of several that claim it, the one whose UID it is
        Ok(found.into_iter().max_by_key(|volume| volume.uid() == id))
    }
}
