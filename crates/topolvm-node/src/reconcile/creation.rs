//! The part of the reconciler that creates LVs, and its results. `create.rs` creates and copies, `snapshot_group.rs`
//! copies several together, `adopt.rs` assigns an existing LV.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use lvmd_client::Absence;
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
    /// The object is a member of a group of snapshots, whose first member has all of them created.
    WithOthers,
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

    /// Writes the created volume to the status, with a condition in addition to the usual ones. Removes the LV again if
    /// the object is gone, which the watch has not shown yet: no other component would ever remove it.
    pub(super) async fn report_created(
        &self,
        volume: &LogicalVolume,
        bytes: u64,
        condition: Option<Condition>,
    ) -> Result<Created, ReconcileError> {
        let error = match self.writer.report_created(volume, bytes, condition).await {
            Ok(written) => return Ok(Created::Volume(written)),
            Err(error) => error,
        };
        if !error.is_gone_or_replaced() || !self.writer.is_gone(volume).await? {
            return Err(error);
        }
        tracing::warn!(
            volume = volume.name(),
            lv = volume.uid(),
            "the object no longer exists; removing the LV that was created for it"
        );
        match self.clients.lvmd.remove(volume.uid(), &volume.spec.device_class).await {
            Ok(()) => {}
            Err(error) if error.absence() != Absence::Unknown => {}
            Err(error) if error.is_transient() => return Err(ReconcileError::LvmdAway(error)),
            Err(error) => return Err(ReconcileError::Remove(error)),
        }
        Ok(Created::Gone)
    }
}
