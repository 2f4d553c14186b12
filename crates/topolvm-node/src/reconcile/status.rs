//! Writes the status of an object. Nobody else does.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tonic::Code;
use topolvm_api::{LogicalVolume, LogicalVolumeStatus, format_bytes, ready_condition};

use super::{Error, FIELD_MANAGER, Reconciler};

/// How long the API server may take for one write.
const LIMIT: Duration = Duration::from_secs(30);

impl Reconciler {
    /// The volume exists with this real size in bytes, and nothing is wrong with it.
    pub(super) async fn report_size(&self, volume: &LogicalVolume, bytes: u64) -> Result<Arc<LogicalVolume>, Error> {
        let volume_id = volume.uid().to_owned();
        let current_size = Some(format_bytes(bytes));
        self.write(volume, LogicalVolumeStatus { volume_id, current_size, ..LogicalVolumeStatus::default() }).await
    }

    /// The last attempt failed.
    pub(super) async fn report_failure(
        &self,
        volume: &LogicalVolume,
        code: Code,
        message: &str,
    ) -> Result<Arc<LogicalVolume>, Error> {
        tracing::warn!(volume = volume.name(), ?code, message, "cannot do what the LogicalVolume asks for");
        let status = volume.status.clone().unwrap_or_default();
        let status = LogicalVolumeStatus { code: code.into(), message: message.to_owned(), ..status };
        let is_news = volume.failure() != Some((code.into(), message));
        let written = self.write(volume, status).await?;
        if is_news {
            self.events.failed(volume, message).await;
        }
        Ok(written)
    }

    /// What failed is being tried again because somebody asked anew. Without this the same failure, written again, would
    /// change nothing, and the controller could not tell the new answer from the old one.
    pub(super) async fn clear_failure(&self, volume: &LogicalVolume) -> Result<Arc<LogicalVolume>, Error> {
        let status = volume.status.clone().unwrap_or_default();
        self.write(volume, LogicalVolumeStatus { code: 0, message: String::new(), ..status }).await
    }

    /// Replaces the status, so that what another writer once left is gone, and says the same in the condition. The object must be the one that was looked at,
    /// and not a new one of the same name, which has a volume of its own.
    pub(super) async fn write(
        &self,
        volume: &LogicalVolume,
        mut status: LogicalVolumeStatus,
    ) -> Result<Arc<LogicalVolume>, Error> {
        status.conditions = vec![ready_condition(volume, &status, self.is_lost(volume), (self.now)())];
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = serde_json::from_value(json!([
            {"op": "test", "path": "/metadata/uid", "value": volume.uid()},
            {"op": "add", "path": "/status", "value": status},
        ]))?;
        let patch = Patch::Json::<()>(patch);
        let written = within("write the status", self.api.patch_status(volume.name(), &params, &patch)).await?;
        Ok(self.written.record(written))
    }

    /// Whether the API server has no such object any more, whatever the watch says.
    pub(super) async fn is_gone(&self, volume: &LogicalVolume) -> Result<bool, Error> {
        let found = within("look whether the object is gone", self.api.get_opt(volume.name())).await?;
        Ok(found.is_none_or(|found| found.uid() != volume.uid()))
    }
}

/// A call of the API server that cannot hang for ever.
pub(super) async fn within<T>(
    action: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::Kube { action, source: Box::new(source) }),
        Err(_) => Err(Error::SlowApi { action }),
    }
}
