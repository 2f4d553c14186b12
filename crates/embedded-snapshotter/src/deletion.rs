//! Has the driver delete the snapshot of a VolumeSnapshotContent, and releases the content.

use kube::ResourceExt as _;
use topolvm_api::SnapshotContent;

use crate::attempt::{Attempt, Progress};
use crate::content_changes::snapshot_deleted;
use crate::error::AttemptError;
use crate::objects::Written;
use crate::secret_reference::snapshot_secret;

impl Attempt {
    /// Deletes the snapshot, and removes it from the status.
    pub(crate) async fn delete(&self, content: SnapshotContent, snapshot: String) -> Result<Progress, AttemptError> {
        if let Err(error) = self.call_delete(&content, &snapshot).await {
            if error.is_for_users() {
                let note = format!("cannot delete the snapshot: {error}");
                self.events.publish_warning(&content, "SnapshotDeleteError", "DeleteSnapshot", note).await;
            }
            return Err(error);
        }
        tracing::info!(content = content.name_any(), snapshot, "deleted a snapshot");
        Ok(Progress::next(self.objects.write_content_in_any_version(content, snapshot_deleted).await?))
    }

    /// Removes the finalizer of a content that needs no snapshot any more.
    pub(crate) async fn release(&self, content: &SnapshotContent) -> Result<Progress, AttemptError> {
        Ok(Progress::next(match self.objects.remove_finalizer(content).await? {
            Written::Content(released) => Some(*released),
            Written::Conflict => self.objects.read_again(content).await?,
        }))
    }

    async fn call_delete(&self, content: &SnapshotContent, snapshot: &str) -> Result<(), AttemptError> {
        let secrets = self.objects.read_secret(snapshot_secret(content)?).await?;
        Ok(self.csi.delete_snapshot(snapshot, secrets).await?)
    }
}
