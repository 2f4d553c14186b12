//! Grows the LV of an object whose size is larger than its current size.

use std::collections::HashMap;
use std::sync::Arc;

use lvmd_client::LvmdError;
use parking_lot::Mutex;
use tonic::Code;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_runtime::grpc::GrpcCode as _;

use super::ReconcileError;
use super::clients::Clients;
use super::object_writer::ObjectWriter;

/// Grows LVs.
#[derive(Debug)]
pub(super) struct Expansion {
    clients: Arc<Clients>,
    writer: Arc<ObjectWriter>,
    /// The request for growth that the failure in the status answers, by UID.
    answered_requests: Mutex<HashMap<String, String>>,
}

impl Expansion {
    /// Makes the part that grows LVs.
    pub(super) fn new(clients: Arc<Clients>, writer: Arc<ObjectWriter>) -> Self {
        Self { clients, writer, answered_requests: Mutex::default() }
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.answered_requests.lock().remove(volume.uid());
    }

    /// Grows the LV if it is too small. If its current size is unknown, it is learned by asking lvmd for the wanted
    /// one.
    pub(super) async fn expand(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let wanted = match parse_bytes(&volume.spec.size) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.writer.report_failure(volume, Code::InvalidArgument, &error.to_string()).await?;
                return Err(error.into());
            }
        };
        if volume.current_bytes().is_some_and(|current| current >= wanted) {
            // The failure was about a size that is not asked for any more
            if volume.failure().is_some() {
                self.writer.clear_failure(volume).await?;
            }
            return Ok(());
        }
        let request = self.growth_request(volume);
        if volume.failure().is_some() && self.answered_requests.lock().get(volume.uid()) != Some(&request) {
            self.writer.clear_failure(volume).await?;
        }
        match self.resize_lv(volume, wanted).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv = volume.lv_name(), bytes, "expanded the logical volume");
                self.writer.report_size(volume, bytes).await?;
                Ok(())
            }
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) => {
                self.writer.report_failure(volume, error.code(), &error.detail()).await?;
                self.answered_requests.lock().insert(volume.uid().to_owned(), request);
                Err(ReconcileError::Expand(error))
            }
        }
    }

    /// Returns what the controller changes in an object when it asks for growth.
    fn growth_request(&self, volume: &LogicalVolume) -> String {
        let requested_at = volume.annotation(self.clients.flavor.resize_requested_at());
        format!("{} {}", volume.spec.size.0, requested_at.unwrap_or_default())
    }

    /// Has lvmd grow an LV; returns its real size in bytes.
    async fn resize_lv(&self, volume: &LogicalVolume, wanted: u64) -> Result<u64, LvmdError> {
        let (lv, class) = (volume.lv_name(), &volume.spec.device_class);
        match self.clients.lvmd.resize(lv, class, wanted).await? {
            // lvmd before 0.36.5 answers without the size
            0 => {
                let found = self.clients.lvmd.find(lv, class).await?;
                Ok(found.map_or(wanted, |lv| lv.size_bytes))
            }
            bytes => Ok(bytes),
        }
    }
}
