//! Writes the status of an object. It is the only writer.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PatchParams;
use tonic::Code;
use topolvm_api::{LogicalVolume, LogicalVolumeStatus, format_bytes, ready_condition};
use topolvm_kube::{json_patch, replace_status};

use super::{ReconcileError, Reconciler};
use crate::api_server::{self, DEADLINE};
use crate::events::FIELD_MANAGER;

impl Reconciler {
    /// Writes that the volume exists with this real size in bytes, and clears a failure.
    pub(super) async fn report_size(
        &self,
        volume: &LogicalVolume,
        bytes: u64,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        self.report_volume(volume, volume.lv_name(), bytes).await
    }

    /// Writes that the volume exists under this name in LVM and with this real size in bytes, and clears a failure.
    pub(super) async fn report_volume(
        &self,
        volume: &LogicalVolume,
        id: &str,
        bytes: u64,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let (volume_id, current_size) = (id.to_owned(), Some(format_bytes(bytes)));
        self.write_status(volume, LogicalVolumeStatus { volume_id, current_size, ..LogicalVolumeStatus::default() })
            .await
    }

    /// Writes the code and message of a failure, and publishes an Event if they are new.
    pub(super) async fn report_failure(
        &self,
        volume: &LogicalVolume,
        code: Code,
        message: &str,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        tracing::warn!(volume = volume.name(), ?code, message, "cannot fulfill the request of the LogicalVolume");
        let status = volume.status.clone().unwrap_or_default();
        let status = LogicalVolumeStatus { code: code.into(), message: message.to_owned(), ..status };
        let is_news = volume.failure() != Some((code.into(), message));
        let written = self.write_status(volume, status).await?;
        if is_news {
            self.events.create_or_expand_failed(volume, message).await;
        }
        Ok(written)
    }

    /// Clears a failure before a requested retry. Without this the same failure, written again, would change nothing,
    /// and the controller could not distinguish the new answer from the old one.
    pub(super) async fn clear_failure(&self, volume: &LogicalVolume) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let status = volume.status.clone().unwrap_or_default();
        self.write_status(volume, LogicalVolumeStatus { code: 0, message: String::new(), ..status }).await
    }

    /// Replaces the status, which removes the fields of other writers, and writes the same to the conditions. Fails if
    /// the object is a new one of the same name, which has its own volume.
    pub(super) async fn write_status(
        &self,
        volume: &LogicalVolume,
        status: LogicalVolumeStatus,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        self.write_status_with(volume, status, None).await
    }

    /// Replaces the status like [`Self::write_status`], and adds a condition to those that follow from it.
    pub(super) async fn write_status_with(
        &self,
        volume: &LogicalVolume,
        mut status: LogicalVolumeStatus,
        other: Option<Condition>,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let ready = ready_condition(volume, &status, self.is_lost(volume), (self.now)());
        status.conditions = std::iter::once(ready).chain(self.io_condition(volume)).chain(other).collect();
        let params = PatchParams::apply(FIELD_MANAGER);
        let patch = json_patch(replace_status(&volume.metadata, &status));
        let written = with_deadline("write the status", self.api.patch_status(volume.name(), &params, &patch)).await?;
        Ok(self.write_cache.insert(written))
    }

    /// Asks the API server, and not the watch, whether the object is gone.
    pub(super) async fn is_gone(&self, volume: &LogicalVolume) -> Result<bool, ReconcileError> {
        let found = with_deadline("check whether the object still exists", self.api.get_opt(volume.name())).await?;
        Ok(found.is_none_or(|found| found.uid() != volume.uid()))
    }
}

/// Awaits a call of the API server with a deadline.
pub(super) async fn with_deadline<T>(
    action: &'static str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, ReconcileError> {
    api_server::call(DEADLINE, call).await.map_err(|source| ReconcileError::Api { action, source })
}
