//! Writes the status of an object. Nobody else does.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tonic::Code;
use topolvm_api::{LogicalVolume, format_bytes};

use super::{Error, FIELD_MANAGER, Reconciler, name};

/// How long the API server may take for one write.
const LIMIT: Duration = Duration::from_secs(30);

impl Reconciler {
    /// The volume exists with this real size in bytes, and nothing is wrong with it.
    pub(super) async fn report_size(&self, volume: &LogicalVolume, bytes: u64) -> Result<Arc<LogicalVolume>, Error> {
        // A merge patch with nulls also clears what the Go implementation wrote; a server-side apply would leave fields
        // of other managers in place
        self.write(
            volume,
            json!({"volumeID": volume.uid(), "currentSize": format_bytes(bytes), "code": null, "message": null}),
        )
        .await
    }

    /// The last attempt failed.
    pub(super) async fn report_failure(
        &self,
        volume: &LogicalVolume,
        code: Code,
        message: &str,
    ) -> Result<Arc<LogicalVolume>, Error> {
        tracing::warn!(volume = name(volume), ?code, message, "cannot do what the LogicalVolume asks for");
        self.write(volume, json!({"code": i32::from(code), "message": message})).await
    }

    /// What failed is being tried again because somebody asked anew. Without this the same failure, written again, would
    /// change nothing, and the controller could not tell the new answer from the old one.
    pub(super) async fn clear_failure(&self, volume: &LogicalVolume) -> Result<Arc<LogicalVolume>, Error> {
        self.write(volume, json!({"code": null, "message": null})).await
    }

    async fn write(&self, volume: &LogicalVolume, status: Value) -> Result<Arc<LogicalVolume>, Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"status": status}));
        let written = within("write the status", self.api.patch_status(name(volume), &params, &patch)).await?;
        Ok(self.written.record(written))
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
