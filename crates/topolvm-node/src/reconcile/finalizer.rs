//! Adds the finalizer and the label that an object must have before an LV is created for it. `delete.rs` takes the
//! finalizer off.

use std::sync::Arc;

use kube::api::PatchParams;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume};
use topolvm_kube::{add_finalizer, json_patch, set_label};

use super::status::with_deadline;
use super::{ReconcileError, Reconciler};
use crate::events::FIELD_MANAGER;

impl Reconciler {
    /// Adds the finalizer and the label in one write. Our controller creates objects with both; another controller
    /// may not.
    pub(super) async fn add_finalizer(&self, volume: Arc<LogicalVolume>) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let labels = volume.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(CREATED_BY_LABEL)).map(String::as_str);
        let mut operations = add_finalizer(&volume.metadata, self.flavor.logical_volume_finalizer());
        if label != Some(CREATED_BY) {
            operations.extend(set_label(&volume.metadata, CREATED_BY_LABEL, CREATED_BY));
        }
        if operations.is_empty() {
            return Ok(volume);
        }
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json_patch(operations);
        let patched = with_deadline("add the finalizer", self.api.patch(volume.name(), &params, &patch)).await?;
        Ok(self.write_cache.insert(patched))
    }
}
