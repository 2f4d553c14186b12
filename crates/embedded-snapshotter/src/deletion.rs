//! Has the driver delete what it has made for a content, and releases the content.

use kube::ResourceExt as _;

use crate::attempt::{Attempt, Progress};
use crate::content::Content;
use crate::content_changes::deleted;
use crate::error::AttemptError;
use crate::objects::Written;
use crate::secret_reference::snapshot_secret;

impl Attempt {
    /// Deletes the snapshot or the group, and removes it from the status.
    pub(crate) async fn delete<C: Content>(&self, content: C, handle: C::Handle) -> Result<Progress<C>, AttemptError> {
        if let Err(error) = self.call_delete(&content, handle.clone()).await {
            if error.is_for_users() {
                let note = format!("cannot delete the {}: {error}", C::NAMES.what);
                let (reason, action) = (C::NAMES.deletion_failed, C::NAMES.delete_action);
                self.events.publish_warning(&content, reason, action, note).await;
            }
            return Err(error);
        }
        tracing::info!(content = content.name_any(), id = C::id_in(&handle), "deleted a {}", C::NAMES.what);
        Ok(Progress::next(self.objects.write_content_in_any_version(content, deleted).await?))
    }

    /// Removes the finalizer of a content that needs no snapshots any more.
    pub(crate) async fn release<C: Content>(&self, content: &C) -> Result<Progress<C>, AttemptError> {
        Ok(Progress::next(match self.objects.remove_finalizer(content).await? {
            Written::Content(released) => Some(*released),
            Written::Conflict => self.objects.read_again(content).await?,
        }))
    }

    async fn call_delete<C: Content>(&self, content: &C, handle: C::Handle) -> Result<(), AttemptError> {
        let secrets = self.objects.read_secret(snapshot_secret(content)?).await?;
        Ok(C::delete(&self.csi, handle, secrets).await?)
    }
}
