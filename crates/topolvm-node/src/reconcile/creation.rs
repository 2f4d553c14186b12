//! The part of the reconciler that creates LVs, and its results. `create.rs` creates and copies, `adopt.rs` assigns an
//! existing LV.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Code;
use topolvm_api::LogicalVolume;

use super::ReconcileError;
use super::clients::Clients;
use super::object_writer::ObjectWriter;
use super::owner_search::OwnerSearch;

/// UIDs of objects for which an LV may have been created, whatever lvmd answered.
#[derive(Debug, Default)]
pub(super) struct CreateAttempts(Mutex<HashSet<String>>);

impl CreateAttempts {
    /// Stores an attempt. Returns true if it is the first one.
    pub(super) fn add(&self, volume: &LogicalVolume) -> bool {
        self.0.lock().insert(volume.uid().to_owned())
    }

    /// Returns whether an LV may have been created for an object.
    pub(super) fn contains(&self, volume: &LogicalVolume) -> bool {
        self.0.lock().contains(volume.uid())
    }

    /// Forgets the attempts for an object.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.0.lock().remove(volume.uid());
    }
}

/// Result of a creation.
#[derive(Debug)]
pub(super) enum Created {
    /// The object has this volume.
    Volume(Arc<LogicalVolume>),
    /// The object cannot have a volume: its status has the error, and the controller, which waits for it, deletes the
    /// object.
    Failed,
    /// The object is gone, and so is the LV that was created for it.
    Gone,
}

/// Creates LVs, copies them, and assigns existing ones.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) clients: Arc<Clients>,
    pub(super) writer: Arc<ObjectWriter>,
    pub(super) owners: Arc<OwnerSearch>,
    pub(super) attempts: Arc<CreateAttempts>,
}

impl Creation {
    /// Writes a final failure to the status.
    pub(super) async fn fail_creation(
        &self,
        volume: &LogicalVolume,
        code: Code,
        message: &str,
    ) -> Result<Created, ReconcileError> {
        self.writer.report_failure(volume, code, message).await?;
        Ok(Created::Failed)
    }
}
