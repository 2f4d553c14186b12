//! Creates the LV of an object that has none.

use lvmd_client::{LvmdError, to_wire};
use tonic::Code;
use topolvm_api::{LogicalVolume, SnapshotGroup, parse_bytes};
use topolvm_proto::lvmd::{CreateLvRequest, CreateLvSnapshotRequest};
use topolvm_runtime::grpc::GrpcCode as _;

use super::ReconcileError;
use super::creation::{Created, Creation};
use super::predecessor::Predecessor;
use super::source::Source;

/// Code in the status of an object that waits, because there is an LV of an earlier object of its name.
const HAS_PREDECESSOR: Code = Code::AlreadyExists;

impl Creation {
    /// Creates the LV of an object, or a copy of another LV.
    pub(super) async fn create(&self, volume: &LogicalVolume) -> Result<Created, ReconcileError> {
        // While it waits for an administrator it is checked repeatedly
        if volume.failure().is_some_and(|(code, _)| Code::from_i32(code) != HAS_PREDECESSOR) {
            return Ok(Created::Failed);
        }
        if let Some(lv) = volume.annotation(self.clients.flavor.adopt()) {
            return self.adopt(volume, lv).await;
        }
        if let Some(predecessor) = self.owners.find_predecessor(volume).await? {
            return self.report_predecessor(volume, &predecessor).await;
        }
        if let Some(group) = SnapshotGroup::of(self.clients.flavor, volume) {
            return self.create_group(volume, &group).await;
        }
        let size_bytes = match parse_bytes(&volume.spec.size) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail_creation(volume, Code::InvalidArgument, &error.to_string()).await,
        };
        let source = match self.find_source(volume).await? {
            Ok(source) => source,
            Err(refusal) => return self.fail_creation(volume, refusal.code(), &refusal.to_string()).await,
        };
        let is_first = self.attempts.add(volume);
        match self.create_lv(volume, source.as_ref(), size_bytes).await {
            Ok(bytes) => {
                tracing::info!(volume = volume.name(), lv = volume.uid(), bytes, "created the logical volume");
                self.report_created(volume, bytes, None).await
            }
            // A restart of lvmd is no failure of the volume: the controller would delete the object and create another
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) => {
                if is_first && is_refused_before_creation(error.code()) {
                    self.attempts.forget(volume);
                }
                self.fail_creation(volume, error.code(), &error.detail()).await
            }
        }
    }

    /// Has lvmd create an LV, or copy the source; returns its size in bytes.
    async fn create_lv(
        &self,
        volume: &LogicalVolume,
        source: Option<&Source>,
        size_bytes: u64,
    ) -> Result<u64, LvmdError> {
        let (name, device_class) = (volume.uid().to_owned(), volume.spec.device_class.clone());
        let (size_bytes, tags) = (to_wire(size_bytes)?, self.clients.lvm_tags(volume).await);
        if let Some(Source { lv, access }) = source {
            let (source_volume, access_type) = (lv.clone(), access.as_str().to_owned());
            let copy = CreateLvSnapshotRequest { name, tags, device_class, source_volume, access_type, size_bytes };
            self.clients.lvmd.copy(copy).await
        } else {
            let lvcreate_option_class = volume.spec.lvcreate_option_class.clone();
            let lv = CreateLvRequest { name, tags, device_class, lvcreate_option_class, size_bytes };
            self.clients.lvmd.create(lv).await
        }
    }

    /// Writes to the status that the object waits for an administrator, and has it tried again.
    async fn report_predecessor(
        &self,
        volume: &LogicalVolume,
        predecessor: &Predecessor,
    ) -> Result<Created, ReconcileError> {
        let message = predecessor.message(self.clients.flavor, volume);
        if volume.failure() != Some((HAS_PREDECESSOR.into(), &message)) {
            self.writer.report_failure(volume, HAS_PREDECESSOR, &message).await?;
        }
        Err(ReconcileError::HasPredecessor(message))
    }
}

/// Returns whether lvmd refuses with this code before it has created anything.
pub(super) const fn is_refused_before_creation(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::NotFound | Code::InvalidArgument | Code::Unimplemented)
}
