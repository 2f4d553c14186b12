//! Limits the I/O of the pods that have the volume of an object, and writes to its condition what is in force.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use topolvm_api::LogicalVolume;

use super::{ReconcileError, Reconciler};
use crate::io_limits::find_condition;

impl Reconciler {
    /// Sets the limits of a volume, and reports the result in its condition.
    pub(super) async fn limit_io(&self, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let Some(limiter) = &self.io_limiter else { return Ok(()) };
        let report = limiter.limit_volume(volume, &self.lvmd).await.map_err(ReconcileError::LimitIo)?;
        let Some(report) = report else { return Ok(()) };
        let is_reported = report.is_reported_by(volume);
        self.io_reports.lock().insert(volume.uid().to_owned(), report);
        if !is_reported {
            self.write_status(volume, volume.status.clone().unwrap_or_default()).await?;
        }
        Ok(())
    }

    /// Returns the condition about limits for a status that is about to be written. What an earlier process has
    /// written stays until it is known what is in force.
    pub(super) fn io_condition(&self, volume: &LogicalVolume) -> Option<Condition> {
        match self.io_reports.lock().get(volume.uid()) {
            Some(report) => report.condition(volume, (self.now)()),
            None => find_condition(volume).cloned(),
        }
    }

    /// Forgets the limits of an object that is gone.
    pub(super) fn forget_io_limits(&self, volume: &LogicalVolume) {
        self.io_reports.lock().remove(volume.uid());
        if let (Some(limiter), Some(id)) = (&self.io_limiter, volume.volume_id()) {
            limiter.forget(id);
        }
    }

    /// Returns the ids of the volumes that a pod has.
    pub(super) fn volumes_of_pod(&self, uid: &str) -> Vec<String> {
        self.io_limiter.as_ref().map(|limiter| limiter.volumes_of_pod(uid)).unwrap_or_default()
    }
}
