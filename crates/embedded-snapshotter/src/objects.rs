//! Reads and writes the objects of the API server that snapshots need.

use std::collections::HashMap;

use csi_calls::Secrets;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use topolvm_api::{CREATED_BY, SNAPSHOT_GROUP, SnapshotContent};
use topolvm_kube::{ReconcileError, json_patch, none_if_not_found, read_secret, remove_finalizers};

use crate::annotations::FINALIZER;
use crate::content_changes::{ContentChange, Part};
use crate::error::AttemptError;
use crate::secret_reference::SecretName;

/// The objects of the API server.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) client: Client,
    pub(crate) driver: &'static str,
}

/// Outcome of a conditional write.
pub(crate) enum Written {
    /// The content as it is now.
    Content(Box<SnapshotContent>),
    /// The content is another version by now, or does not exist.
    Conflict,
}

impl Objects {
    /// Reads the content with a name.
    pub(crate) async fn read_content(&self, name: &str) -> Result<Option<SnapshotContent>, ReconcileError> {
        let read = none_if_not_found(self.contents().get(name).await);
        read.map_err(ReconcileError::api("read VolumeSnapshotContent", name))
    }

    /// Reads a content again; `None` if it does not exist any more, or another has its name.
    pub(crate) async fn read_again(
        &self,
        content: &SnapshotContent,
    ) -> Result<Option<SnapshotContent>, ReconcileError> {
        let read = self.read_content(&content.name_any()).await?;
        Ok(read.filter(|read| read.metadata.uid == content.metadata.uid))
    }

    /// Writes a change to exactly this version of a content.
    pub(crate) async fn write_content(
        &self,
        content: &SnapshotContent,
        change: ContentChange,
    ) -> Result<Written, ReconcileError> {
        let Some((part, patch)) = change.into_patch(content) else {
            return Ok(Written::Content(Box::new(content.clone())));
        };
        let (name, patch) = (content.name_any(), Patch::Merge(patch));
        let written = match part {
            Part::Annotations => self.contents().patch(&name, &params(), &patch).await,
            Part::Status => self.contents().patch_status(&name, &params(), &patch).await,
        };
        written_or_conflict(written).map_err(ReconcileError::api("change VolumeSnapshotContent", name))
    }

    /// Writes a change to a content, computed for the version that it then has. Returns the written content; `None` if
    /// it does not exist any more.
    pub(crate) async fn write_content_in_any_version(
        &self,
        mut content: SnapshotContent,
        change: impl Fn(&SnapshotContent) -> ContentChange,
    ) -> Result<Option<SnapshotContent>, ReconcileError> {
        loop {
            let change = change(&content);
            content = match self.write_content(&content, change).await? {
                Written::Content(written) => return Ok(Some(*written)),
                Written::Conflict => match self.read_again(&content).await? {
                    Some(read) => read,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Removes the finalizer from exactly this content.
    pub(crate) async fn remove_finalizer(&self, content: &SnapshotContent) -> Result<Written, ReconcileError> {
        let name = content.name_any();
        let patch = json_patch(remove_finalizers(&content.metadata, &[FINALIZER]));
        let patched = self.contents().patch(&name, &params(), &patch).await;
        written_or_conflict(patched).map_err(ReconcileError::api("remove a finalizer from VolumeSnapshotContent", name))
    }

    /// Reads the contents of a Secret; none where none is named.
    pub(crate) async fn read_secret(&self, secret: Option<SecretName>) -> Result<Secrets, AttemptError> {
        let Some(SecretName { namespace, name }) = secret else { return Ok(Secrets::new()) };
        Ok(read_secret(&self.client, &namespace, &name).await?)
    }

    /// Reads the parameters of a VolumeSnapshotClass.
    pub(crate) async fn read_class(&self, class: &str) -> Result<HashMap<String, String>, AttemptError> {
        let kind = GroupVersionKind::gvk(SNAPSHOT_GROUP, "v1", "VolumeSnapshotClass");
        let resource = ApiResource::from_gvk_with_plural(&kind, "volumesnapshotclasses");
        let classes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let read = none_if_not_found(classes.get(class).await);
        let read = read.map_err(ReconcileError::api("read VolumeSnapshotClass", class))?;
        let read = read.ok_or_else(|| AttemptError::ClassMissing(class.to_owned()))?;
        let driver = read.data.get("driver").and_then(Value::as_str).unwrap_or_default();
        if driver != self.driver {
            let (class, driver) = (class.to_owned(), driver.to_owned());
            return Err(AttemptError::ClassOfOtherDriver { class, driver });
        }
        let parameters = read.data.get("parameters").and_then(Value::as_object).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(parameters.map(|(key, value)| (key.clone(), text(value))).collect())
    }

    pub(crate) fn contents(&self) -> Api<SnapshotContent> {
        Api::all(self.client.clone())
    }
}

/// Recognizes the answers with which the API server refuses a write because the object has changed. 422 is an error: it
/// can also mean that the object is invalid, and the write would be repeated without a pause.
fn written_or_conflict(written: kube::Result<SnapshotContent>) -> kube::Result<Written> {
    match written {
        Ok(content) => Ok(Written::Content(Box::new(content))),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Written::Conflict),
        Err(error) => Err(error),
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() }
}
