//! The record of a filesystem: an annotation of the LogicalVolume with the type that its volume was formatted with. A
//! device without a signature is blank only if there is no record; else its filesystem is missing.

use kube::api::{Patch, PatchParams};
use linux_mount::Filesystem;
use serde_json::json;
use topolvm_api::LogicalVolume;
use topolvm_kube::api_server::{self, DEADLINE};

use super::{LookupError, RecordError, Volumes};
use crate::events::FIELD_MANAGER;

impl Volumes {
    /// Returns the recorded filesystem type of a volume.
    pub(crate) fn recorded_filesystem<'a>(&self, volume: &'a LogicalVolume) -> Option<&'a str> {
        volume.annotation(self.flavor.filesystem())
    }

    /// Returns whether an administrator has asked to have the volume formatted with `filesystem`, and has given up
    /// its contents.
    pub(crate) fn is_reformat_requested(&self, volume: &LogicalVolume, filesystem: Filesystem) -> bool {
        volume.annotation(self.flavor.reformat()) == Some(filesystem.as_str())
    }

    /// Returns whether the record has this filesystem type, and no formatting is asked for.
    pub(crate) fn is_recorded_as(&self, volume: &LogicalVolume, filesystem: Filesystem) -> bool {
        self.recorded_filesystem(volume) == Some(filesystem.as_str())
            && volume.annotation(self.flavor.reformat()).is_none()
    }

    /// Reads the object from the API server and not from the watch: whether to format must not depend on how far the
    /// watch lags behind.
    pub(crate) async fn read_from_api_server(
        &self,
        volume: &LogicalVolume,
        id: &str,
    ) -> Result<LogicalVolume, LookupError> {
        api_server::call(DEADLINE, self.api.get_opt(volume.name()))
            .await
            .map_err(|source| LookupError::Api { id: id.to_owned(), source })?
            .filter(|read| read.uid() == volume.uid())
            .ok_or_else(|| LookupError::Unknown { id: id.to_owned(), node: self.node.clone() })
    }

    /// Writes the record of a filesystem, and removes the request to format again. Returns when the API server has
    /// stored it. Fails if the object is another one of the same name by now.
    pub(crate) async fn record_filesystem(
        &self,
        volume: &LogicalVolume,
        filesystem: Filesystem,
    ) -> Result<(), RecordError> {
        // The UID in a merge patch is a precondition. A JSON patch would need to know whether there are any annotations
        let patch = json!({"metadata": {
            "uid": volume.uid(),
            "annotations": {
                self.flavor.filesystem(): filesystem.as_str(),
                self.flavor.reformat(): null,
            },
        }});
        let params = PatchParams::apply(FIELD_MANAGER);
        let patch = Patch::Merge(patch);
        api_server::call(DEADLINE, self.api.patch(volume.name(), &params, &patch))
            .await
            .map_err(|source| RecordError { name: volume.name().to_owned(), source })?;
        tracing::info!(volume = volume.name(), %filesystem, "recorded the filesystem of the volume");
        Ok(())
    }

    /// Returns the command with which an administrator has the volume formatted again.
    pub(crate) fn reformat_command(&self, volume: &LogicalVolume, filesystem: Filesystem) -> String {
        let (group, key) = (self.flavor.group(), self.flavor.reformat());
        format!("kubectl annotate logicalvolumes.{group} {} {key}={filesystem}", volume.name())
    }
}
