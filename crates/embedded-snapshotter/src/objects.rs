//! Reads and writes the objects of the API server that snapshots need.

use std::collections::HashMap;

use csi_calls::Secrets;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use topolvm_api::CREATED_BY;
use topolvm_kube::{ReconcileError, json_patch, none_if_not_found, read_secret, remove_finalizers};

use crate::content::Content;
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
pub(crate) enum Written<C> {
    /// The content as it is now.
    Content(Box<C>),
    /// The content is another version by now, or does not exist.
    Conflict,
}

impl Objects {
    /// Reads the content with a name.
    pub(crate) async fn read_content<C: Content>(&self, name: &str) -> Result<Option<C>, ReconcileError> {
        let read = none_if_not_found(self.contents().get(name).await);
        read.map_err(ReconcileError::api("read content", name))
    }

    /// Reads a content again; `None` if it does not exist any more, or another has its name.
    pub(crate) async fn read_again<C: Content>(&self, content: &C) -> Result<Option<C>, ReconcileError> {
        let read: Option<C> = self.read_content(&content.name_any()).await?;
        Ok(read.filter(|read| read.meta().uid == content.meta().uid))
    }

    /// Writes a change to exactly this version of a content.
    pub(crate) async fn write_content<C: Content>(
        &self,
        content: &C,
        change: ContentChange,
    ) -> Result<Written<C>, ReconcileError> {
        let Some((part, patch)) = change.into_patch(content) else {
            return Ok(Written::Content(Box::new(content.clone())));
        };
        let (name, patch) = (content.name_any(), Patch::Merge(patch));
        let written = match part {
            Part::Annotations => self.contents().patch(&name, &params(), &patch).await,
            Part::Status => self.contents().patch_status(&name, &params(), &patch).await,
        };
        written_or_conflict(written).map_err(ReconcileError::api("change content", name))
    }

    /// Writes a change to a content, computed for the version that it then has. Returns the written content; `None` if
    /// it does not exist any more.
    pub(crate) async fn write_content_in_any_version<C: Content>(
        &self,
        mut content: C,
        change: impl Fn(&C) -> ContentChange,
    ) -> Result<Option<C>, ReconcileError> {
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
    pub(crate) async fn remove_finalizer<C: Content>(&self, content: &C) -> Result<Written<C>, ReconcileError> {
        let name = content.name_any();
        let patch = json_patch(remove_finalizers(content.meta(), &[C::NAMES.finalizer]));
        let patched = self.contents().patch(&name, &params(), &patch).await;
        written_or_conflict(patched).map_err(ReconcileError::api("remove a finalizer from content", name))
    }

    /// Reads the contents of a Secret; none where none is named.
    pub(crate) async fn read_secret(&self, secret: Option<SecretName>) -> Result<Secrets, AttemptError> {
        let Some(SecretName { namespace, name }) = secret else { return Ok(Secrets::new()) };
        Ok(read_secret(&self.client, &namespace, &name).await?)
    }

    /// Reads the parameters of a class.
    pub(crate) async fn read_class<C: Content>(&self, class: &str) -> Result<HashMap<String, String>, AttemptError> {
        let names = C::NAMES;
        let kind = GroupVersionKind::gvk(names.class_group, "v1", names.class);
        let resource = ApiResource::from_gvk_with_plural(&kind, names.classes);
        let classes: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let read = none_if_not_found(classes.get(class).await);
        let read = read.map_err(ReconcileError::api("read the class of a content", class))?;
        let read = read.ok_or_else(|| AttemptError::ClassMissing { names, class: class.to_owned() })?;
        let driver = read.data.get("driver").and_then(Value::as_str).unwrap_or_default();
        if driver != self.driver {
            let (class, driver) = (class.to_owned(), driver.to_owned());
            return Err(AttemptError::ClassOfOtherDriver { names, class, driver });
        }
        let parameters = read.data.get("parameters").and_then(Value::as_object).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(parameters.map(|(key, value)| (key.clone(), text(value))).collect())
    }

    pub(crate) fn contents<C: Content>(&self) -> Api<C> {
        Api::all(self.client.clone())
    }
}

/// Recognizes the answers with which the API server refuses a write because the object has changed. 422 is an error: it
/// can also mean that the object is invalid, and the write would be repeated without a pause.
fn written_or_conflict<C>(written: kube::Result<C>) -> kube::Result<Written<C>> {
    match written {
        Ok(content) => Ok(Written::Content(Box::new(content))),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Written::Conflict),
        Err(error) => Err(error),
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() }
}
