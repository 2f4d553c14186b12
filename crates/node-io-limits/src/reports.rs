//! The reports about volumes, for the condition of their objects.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;
use topolvm_api::{LogicalVolume, io_limited_condition};

use crate::report::IoReport;

/// The reports by the UID of the object.
#[derive(Debug, Default)]
pub(crate) struct IoReports(Mutex<HashMap<String, IoReport>>);

impl IoReports {
    /// Stores the report about a volume, and returns whether its condition must be written.
    pub(crate) fn insert(&self, volume: &LogicalVolume, report: IoReport) -> bool {
        let is_reported = report.is_reported_by(volume);
        self.0.lock().insert(volume.uid().to_owned(), report);
        !is_reported
    }

    /// Returns the condition about limits for a status that is about to be written. What an earlier process has
    /// written stays until it is known what is in force.
    pub(crate) fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition> {
        match self.0.lock().get(volume.uid()) {
            Some(report) => report.condition(volume, now),
            None => io_limited_condition(volume).cloned(),
        }
    }

    /// Forgets the report about an object that is gone.
    pub(crate) fn forget(&self, volume: &LogicalVolume) {
        self.0.lock().remove(volume.uid());
    }
}
