//! The record of a filesystem: an annotation on the LogicalVolume says as what its volume was formatted. A device that
//! shows nothing is blank only if there is no record; else a filesystem has been lost on it.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tonic::Code;
use topolvm_api::LogicalVolume;
use topolvm_runtime::grpc::GrpcCode;

use super::{LookupError, Volumes};
use crate::Filesystem;

/// How long the API server may take for a question or a write about one object.
const LIMIT: Duration = Duration::from_secs(30);

/// Who writes, as `managedFields` shows it.
const FIELD_MANAGER: &str = "topolvm-node";

/// The record cannot be written. The call that needs it fails and is repeated; it then finds the filesystem.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The API server said no.
    #[error(
        "cannot write to LogicalVolume {name} that its volume has a filesystem; without that nobody could tell later whether one was lost"
    )]
    Api {
        /// The object.
        name: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// The API server said nothing.
    #[error(
        "cannot write to LogicalVolume {name} that its volume has a filesystem, because the Kubernetes API server did not answer within {} s",
        LIMIT.as_secs()
    )]
    SlowApi {
        /// The object.
        name: String,
    },
}

impl GrpcCode for RecordError {
    fn code(&self) -> Code {
        match self {
            Self::Api { .. } | Self::SlowApi { .. } => Code::Unavailable,
        }
    }
}

impl Volumes {
    /// The type of the filesystem that was made on the volume, as the object says.
    pub fn recorded_filesystem<'a>(&self, volume: &'a LogicalVolume) -> Option<&'a str> {
        volume.annotation(self.flavor.filesystem())
    }

    /// Whether an administrator has given up what lies on the volume, to have it formatted with `filesystem`.
    pub fn is_given_up(&self, volume: &LogicalVolume, filesystem: Filesystem) -> bool {
        volume.annotation(self.flavor.reformat()) == Some(filesystem.as_str())
    }

    /// Whether the object has the record of this filesystem, and asks for no other.
    pub fn is_settled(&self, volume: &LogicalVolume, filesystem: Filesystem) -> bool {
        self.recorded_filesystem(volume) == Some(filesystem.as_str())
            && volume.annotation(self.flavor.reformat()).is_none()
    }

    /// The object as the API server has it now, and not as the watch has shown it: what is to be formatted must not
    /// depend on how far the watch lags behind.
    pub async fn read(&self, volume: &LogicalVolume, id: &str) -> Result<LogicalVolume, LookupError> {
        let read = tokio::time::timeout(LIMIT, self.api.get_opt(volume.name())).await;
        read.map_err(|_| LookupError::SlowApi { id: id.to_owned() })?
            .map_err(|source| LookupError::Api { id: id.to_owned(), source: Box::new(source) })?
            .filter(|read| read.uid() == volume.uid())
            .ok_or_else(|| LookupError::Unknown { id: id.to_owned(), node: self.node.clone() })
    }

    /// Writes down that the volume carries this filesystem, and that nothing is to be formatted again. Returns when the
    /// API server has stored it. Fails where the object is another one of the same name by now.
    pub async fn record_filesystem(&self, volume: &LogicalVolume, filesystem: Filesystem) -> Result<(), RecordError> {
        // The UID in a merge patch is a precondition. A JSON patch would need to know whether there are any annotations
        let patch = json!({"metadata": {
            "uid": volume.uid(),
            "annotations": {
                self.flavor.filesystem(): filesystem.as_str(),
                self.flavor.reformat(): null,
            },
        }});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let written = tokio::time::timeout(LIMIT, self.api.patch(volume.name(), &params, &patch)).await;
        let name = || volume.name().to_owned();
        written
            .map_err(|_| RecordError::SlowApi { name: name() })?
            .map_err(|source| RecordError::Api { name: name(), source: Box::new(source) })?;
        tracing::info!(volume = volume.name(), %filesystem, "recorded the filesystem of the volume");
        Ok(())
    }

    /// Tells in an Event of the object that its filesystem cannot be seen any more.
    pub async fn tell_missing_filesystem(&self, volume: &LogicalVolume, message: &str) {
        self.events.filesystem_missing(volume, message).await;
    }

    /// The command with which an administrator gives up what lies on the volume.
    pub fn reformat_command(&self, volume: &LogicalVolume, filesystem: Filesystem) -> String {
        let (group, key) = (self.flavor.group(), self.flavor.reformat());
        format!("kubectl annotate logicalvolumes.{group} {} {key}={filesystem}", volume.name())
    }
}
