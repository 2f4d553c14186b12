//! The finalizer and the label that an object must carry before an LV is made for it.

use std::sync::Arc;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume};

use super::status::within;
use super::{Error, FIELD_MANAGER, Reconciler};

impl Reconciler {
    /// Our controller creates objects with both; one that another controller made gets them here, in one write.
    pub(super) async fn mark(&self, volume: Arc<LogicalVolume>) -> Result<Arc<LogicalVolume>, Error> {
        let finalizer = self.flavor.logical_volume_finalizer();
        let labels = volume.metadata.labels.as_ref();
        let is_labelled =
            labels.and_then(|labels| labels.get(CREATED_BY_LABEL)).map(String::as_str) == Some(CREATED_BY);
        if volume.has_finalizer(finalizer) && is_labelled {
            return Ok(volume);
        }
        let mut finalizers = volume.metadata.finalizers.clone().unwrap_or_default();
        if !volume.has_finalizer(finalizer) {
            finalizers.push(finalizer.to_owned());
        }
        // The list is written as a whole, so the write must fail if somebody has changed it in between
        let patch = json!({"metadata": {
            "resourceVersion": volume.metadata.resource_version,
            "finalizers": finalizers,
            "labels": {CREATED_BY_LABEL: CREATED_BY},
        }});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let marked = within("add the finalizer", self.api.patch(volume.name(), &params, &Patch::Merge(patch))).await?;
        Ok(self.written.record(marked))
    }
}
