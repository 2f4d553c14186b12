//! The finalizer and the label that an object must carry before an LV is made for it.

use std::sync::Arc;

use kube::api::PatchParams;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume};
use topolvm_kube::{add_finalizer, json_patch, set_label};

use super::status::within;
use super::{Error, FIELD_MANAGER, Reconciler};

impl Reconciler {
    /// Our controller creates objects with both; one that another controller made gets them here, in one write.
    pub(super) async fn mark(&self, volume: Arc<LogicalVolume>) -> Result<Arc<LogicalVolume>, Error> {
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
        let marked = within("add the finalizer", self.api.patch(volume.name(), &params, &patch)).await?;
        Ok(self.written.record(marked))
    }
}
