//! Writes the objects of the node: finalizer, annotations and status. It is the only writer of the status.

use std::sync::Arc;

use json_patch::PatchOperation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::PatchParams;
use tonic::Code;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume, LogicalVolumeStatus, format_bytes, ready_condition};
use topolvm_kube::api_server::{self, DEADLINE};
use topolvm_kube::{add_finalizer, json_patch, remove_annotation, replace_status, set_annotation, set_label};

use super::ReconcileError;
use super::clients::Clients;
use super::lost::LostVolumes;
use super::write_cache::WriteCache;
use crate::events::FIELD_MANAGER;
use crate::limit_io::LimitIo;

/// The writer, and the state of volumes that their conditions show.
#[derive(Debug)]
pub(super) struct ObjectWriter {
    clients: Arc<Clients>,
    pub(super) cache: WriteCache,
    pub(super) lost: LostVolumes,
    pub(super) io: Arc<dyn LimitIo>,
}

impl ObjectWriter {
    /// Makes the writer.
    pub(super) fn new(clients: Arc<Clients>, io: Arc<dyn LimitIo>) -> Self {
        Self { clients, cache: WriteCache::default(), lost: LostVolumes::default(), io }
    }

    /// Forgets the state of an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.cache.remove(volume);
        self.lost.forget(volume);
        self.io.forget(volume);
    }

    /// Adds the finalizer and the label in one write. Our controller creates objects with both; another controller
    /// may not.
    pub(super) async fn add_finalizer(&self, volume: Arc<LogicalVolume>) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let labels = volume.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(CREATED_BY_LABEL)).map(String::as_str);
        let mut operations = add_finalizer(&volume.metadata, self.clients.flavor.logical_volume_finalizer());
        if label != Some(CREATED_BY) {
            operations.extend(set_label(&volume.metadata, CREATED_BY_LABEL, CREATED_BY));
        }
        if operations.is_empty() {
            return Ok(volume);
        }
        self.patch("add the finalizer", &volume, operations).await
    }

    /// Replaces the request for an LV by a record of it, once the object has the LV: a copy of the object without its
    /// status, and a tool that repeats its work, must not ask for the LV again.
    pub(super) async fn record_adoption(
        &self,
        volume: Arc<LogicalVolume>,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let Some(lv) = volume.annotation(self.clients.flavor.adopt()) else { return Ok(volume) };
        let mut operations = set_annotation(&volume.metadata, self.clients.flavor.adopted(), lv);
        operations.extend(remove_annotation(&volume.metadata, self.clients.flavor.adopt(), lv));
        self.patch("record the adoption", &volume, operations).await
    }

    /// Patches the metadata of an object.
    async fn patch(
        &self,
        action: &'static str,
        volume: &LogicalVolume,
        operations: Vec<PatchOperation>,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json_patch(operations);
        let patched = with_deadline(action, self.clients.api.patch(volume.name(), &params, &patch)).await?;
        Ok(self.cache.insert(patched))
    }

    /// Writes to the condition whether the LV is lost.
    pub(super) async fn report_lost(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let is_lost = self.lost.contains(volume);
        if is_lost == volume.is_lost() {
            return Ok(());
        }
        let written = self.write_status(volume, volume.status.clone().unwrap_or_default()).await?;
        if is_lost {
            let message = topolvm_api::lost_message(volume);
            tracing::error!(
                volume = volume.name(),
                lv = volume.volume_id(),
                message,
                "the logical volume no longer exists in LVM"
            );
            self.clients.events.volume_lost(&written, &message).await;
        } else {
            tracing::info!(volume = volume.name(), lv = volume.volume_id(), "the logical volume exists again");
        }
        Ok(())
    }

    /// Sets the I/O limits of a volume, and writes the result to its condition.
    pub(super) async fn limit_io(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        if self.io.limit_volume(volume).await.map_err(ReconcileError::LimitIo)? {
            self.write_status(volume, volume.status.clone().unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// Writes that the volume exists with this real size in bytes, and clears a failure.
    pub(super) async fn report_size(
        &self,
        volume: &LogicalVolume,
        bytes: u64,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        self.report_volume(volume, volume.lv_name(), bytes).await
    }

    /// Writes that the volume was created with this real size in bytes, and a condition that stays.
    pub(super) async fn report_created(
        &self,
        volume: &LogicalVolume,
        bytes: u64,
        condition: Option<Condition>,
    ) -> Result<Arc<LogicalVolume>, ReconcileError> {
        let (volume_id, current_size) = (volume.lv_name().to_owned(), Some(format_bytes(bytes)));
        let status = LogicalVolumeStatus { volume_id, current_size, ..LogicalVolumeStatus::default() };
        self.write_status_with(volume, status, condition).await
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
            self.clients.events.create_or_expand_failed(volume, message).await;
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
        let ready = ready_condition(volume, &status, self.lost.contains(volume), (self.clients.now)());
        let io_limited = self.io.condition(volume, (self.clients.now)());
        // It never changes, and no later write may lose it
        let taken_together = volume.taken_together().filter(|kept| {
            !status.volume_id.is_empty() && other.as_ref().is_none_or(|other| other.type_ != kept.type_)
        });
        let taken_together = taken_together.cloned();
        let others = [io_limited, taken_together].into_iter().flatten();
        status.conditions = std::iter::once(ready).chain(others).chain(other).collect();
        let params = PatchParams::apply(FIELD_MANAGER);
        let patch = json_patch(replace_status(&volume.metadata, &status));
        let written =
            with_deadline("write the status", self.clients.api.patch_status(volume.name(), &params, &patch)).await?;
        Ok(self.cache.insert(written))
    }

    /// Asks the API server, and not the watch, whether the object is gone.
    pub(super) async fn is_gone(&self, volume: &LogicalVolume) -> Result<bool, ReconcileError> {
        let call = self.clients.api.get_opt(volume.name());
        let found = with_deadline("check whether the object still exists", call).await?;
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
