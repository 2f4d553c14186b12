//! Limits the I/O of the pods that use the volume of an object, and remembers the report for its condition.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lvmd_client::LvmdClient;
use parking_lot::Mutex;
use topolvm_api::LogicalVolume;

use super::ReconcileError;
use crate::io_limits::{IoLimiter, IoReport, find_condition};

/// The limiter, and its reports by the UID of the object.
#[derive(Debug)]
pub(super) struct IoReports {
    limiter: Option<IoLimiter>,
    reports: Mutex<HashMap<String, IoReport>>,
}

impl IoReports {
    /// Makes the reports of a limiter; none without one.
    pub(super) fn new(limiter: Option<IoLimiter>) -> Self {
        Self { limiter, reports: Mutex::default() }
    }

    /// Sets the limits of a volume, and returns whether its condition must be written.
    pub(super) async fn limit(&self, volume: &LogicalVolume, lvmd: &LvmdClient) -> Result<bool, ReconcileError> {
        let Some(limiter) = &self.limiter else { return Ok(false) };
        let report = limiter.limit_volume(volume, lvmd).await.map_err(ReconcileError::LimitIo)?;
        let Some(report) = report else { return Ok(false) };
        let is_reported = report.is_reported_by(volume);
        self.reports.lock().insert(volume.uid().to_owned(), report);
        Ok(!is_reported)
    }

    /// Returns the condition about limits for a status that is about to be written. What an earlier process has
    /// written stays until it is known what is in force.
    pub(super) fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition> {
        match self.reports.lock().get(volume.uid()) {
            Some(report) => report.condition(volume, now),
            None => find_condition(volume).cloned(),
        }
    }

    /// Forgets the limits of an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.reports.lock().remove(volume.uid());
        if let (Some(limiter), Some(id)) = (&self.limiter, volume.volume_id()) {
            limiter.forget(id);
        }
    }

    /// Returns the ids of the volumes that a pod uses.
    pub(super) fn volumes_of_pod(&self, uid: &str) -> Vec<String> {
        self.limiter.as_ref().map(|limiter| limiter.volumes_of_pod(uid)).unwrap_or_default()
    }
}
