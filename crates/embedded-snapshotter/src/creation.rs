//! Has the driver create the snapshot of a VolumeSnapshotContent, or show whether it is ready.
//!
//! The annotation about the creation is in the content before the driver is called, and stays until the outcome is
//! known: the content is not deleted meanwhile, and after a crash the next leader repeats the same call.

use csi_calls::Secrets;
use kube::ResourceExt as _;
use topolvm_api::{SnapshotContent, SnapshotContentStatus};
use topolvm_proto::csi::CreateSnapshotRequest;

use crate::attempt::{Attempt, End, Progress};
use crate::content_changes::{creation_begins, creation_ends, failed, snapshot_found};
use crate::content_step::{Step, next_step};
use crate::driver_snapshot::DriverSnapshot;
use crate::error::AttemptError;
use crate::objects::Written;
use crate::secret_reference::{list_secret, snapshot_secret};
use crate::snapshot_request::driver_parameters;

/// Reason of the Event about the first attempt to create a snapshot.
const CREATION_FAILED: &str = "SnapshotCreationFailed";
/// Reason of the Event about later attempts, and about snapshots that existed before.
const CHECK_FAILED: &str = "SnapshotContentCheckandUpdateFailed";

/// A kind of failure, as users see it.
struct Report {
    reason: &'static str,
    action: &'static str,
    /// Text before the error.
    summary: &'static str,
}

impl Attempt {
    /// Creates the snapshot. The same call again shows whether a snapshot that exists is ready.
    pub(crate) async fn create(&self, content: SnapshotContent, volume: String) -> Result<Progress, AttemptError> {
        let request = match self.creation_request(&content, volume).await {
            Ok(request) => request,
            Err(error) => return self.record_failure(content.clone(), &Report::of_creation(&content), error).await,
        };
        let begun = match self.objects.write_content(&content, creation_begins(&content)).await? {
            Written::Content(begun) => *begun,
            Written::Conflict => return Ok(Progress::next(self.objects.read_again(&content).await?)),
        };
        match self.csi.create_snapshot(request).await.map_err(AttemptError::from) {
            Ok(snapshot) => {
                let found = self.record_snapshot(begun, &snapshot.into()).await?;
                let Some(found) = found else { return Ok(Progress::Next(None)) };
                let finished = self.objects.write_content_in_any_version(found, creation_ends).await?;
                Ok(self.progress_of(finished))
            }
            Err(error) => {
                let content = if error.is_final() {
                    self.objects.write_content_in_any_version(begun, creation_ends).await?
                } else {
                    Some(begun)
                };
                let Some(content) = content else { return Err(error) };
                self.record_failure(content.clone(), &Report::of_creation(&content), error).await
            }
        }
    }

    /// Asks the driver for a snapshot that existed before the content.
    pub(crate) async fn check(&self, content: SnapshotContent, snapshot: String) -> Result<Progress, AttemptError> {
        match self.find_snapshot(&content, snapshot).await {
            Ok(found) => {
                let checked = self.record_snapshot(content, &found).await?;
                Ok(self.progress_of(checked))
            }
            Err(error) => {
                let (reason, action) = (CHECK_FAILED, "CheckSnapshot");
                let report = Report { reason, action, summary: "cannot check the snapshot" };
                self.record_failure(content, &report, error).await
            }
        }
    }

    async fn creation_request(
        &self,
        content: &SnapshotContent,
        source_volume_id: String,
    ) -> Result<CreateSnapshotRequest, AttemptError> {
        let name = self.names.of(content)?;
        let class = content.spec.volume_snapshot_class_name.as_deref().ok_or(AttemptError::NoClass)?;
        let parameters = driver_parameters(self.objects.read_class(class).await?, content)?;
        let secrets = self.objects.read_secret(snapshot_secret(content)?).await?;
        Ok(CreateSnapshotRequest { source_volume_id, name, secrets, parameters, ..CreateSnapshotRequest::default() })
    }

    /// Finds a snapshot. A driver that lists no snapshots is assumed to have it.
    async fn find_snapshot(&self, content: &SnapshotContent, id: String) -> Result<DriverSnapshot, AttemptError> {
        let secrets = self.list_secrets(content).await?;
        if !self.csi.lists_snapshots().await? {
            return Ok(DriverSnapshot { id, is_ready: true, created: None, bytes: 0 });
        }
        let found = self.csi.find_snapshot(&id, secrets).await?;
        found.map(DriverSnapshot::from).ok_or(AttemptError::SnapshotMissing(id))
    }

    async fn list_secrets(&self, content: &SnapshotContent) -> Result<Secrets, AttemptError> {
        let Some(class) = content.spec.volume_snapshot_class_name.as_deref() else { return Ok(Secrets::new()) };
        let parameters = self.objects.read_class(class).await?;
        self.objects.read_secret(list_secret(&parameters, content)?).await
    }

    /// Writes what the driver has shown to the content. `None` if it does not exist any more.
    async fn record_snapshot(
        &self,
        content: SnapshotContent,
        snapshot: &DriverSnapshot,
    ) -> Result<Option<SnapshotContent>, AttemptError> {
        let name = content.name_any();
        let find = |content: &SnapshotContent| snapshot_found(content, snapshot, (self.now)());
        let written = self.objects.write_content_in_any_version(content, find).await?;
        let (id, is_ready) = (&snapshot.id, snapshot.is_ready);
        if written.is_some() {
            tracing::info!(content = name, snapshot = id, is_ready, "recorded a snapshot");
        } else {
            tracing::warn!(
                content = name,
                snapshot = id,
                "the VolumeSnapshotContent was removed while the driver worked on its snapshot, which stays; delete \
                 its LogicalVolume if it is not needed"
            );
        }
        Ok(written)
    }

    /// Returns how a step ends after which the status shows what the driver has answered.
    fn progress_of(&self, content: Option<SnapshotContent>) -> Progress {
        let next = content.as_ref().map(|content| next_step(content, self.objects.driver));
        match next {
            Some(Step::Create { .. } | Step::Check { .. }) => Progress::End(End::NotReady),
            Some(Step::Wait | Step::FinishCreation | Step::Delete { .. } | Step::Release) | None => {
                Progress::next(content)
            }
        }
    }

    /// Writes a failure to the status and publishes an Event, unless the status shows the same already. Returns the
    /// error.
    async fn record_failure(
        &self,
        content: SnapshotContent,
        report: &Report,
        error: AttemptError,
    ) -> Result<Progress, AttemptError> {
        if error.is_for_users() {
            let message = format!("{}: {error}", report.summary);
            let fail = |content: &SnapshotContent| failed(content, &message, (self.now)());
            // Before the status, which would be taken for an Event that was published
            if !fail(&content).is_empty() {
                self.events.publish_warning(&content, report.reason, report.action, message.clone()).await;
            }
            self.objects.write_content_in_any_version(content, fail).await?;
        }
        Err(error)
    }
}

impl Report {
    /// Returns how a failed creation is reported. As with csi-snapshotter the reason differs after the first attempt.
    fn of_creation(content: &SnapshotContent) -> Self {
        let action = "CreateSnapshot";
        if content.status == SnapshotContentStatus::default() {
            Self { reason: CREATION_FAILED, action, summary: "cannot create the snapshot" }
        } else {
            Self { reason: CHECK_FAILED, action, summary: "still cannot create the snapshot" }
        }
    }
}
