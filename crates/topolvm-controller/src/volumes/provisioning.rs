//! Waits until the node agent has provisioned a volume, or has reported why it cannot.

use kube::api::Preconditions;
use tokio::time::Instant;
use topolvm_api::LogicalVolume;

use super::delete::{Deletion, exact_version};
use super::{Volume, VolumeError, VolumeObjects};

/// The status of a `LogicalVolume` that its node agent provisions.
#[derive(Debug)]
enum Progress {
    Provisioned(Volume),
    Failed {
        error: VolumeError,
        /// The version of the object with this failure.
        version: Preconditions,
    },
    Deleted,
}

impl VolumeObjects {
    /// Waits until the node agent has provisioned the volume of this object. When it cannot, the object is deleted, and
    /// the error has the agent's code and message.
    pub(super) async fn wait_provisioned(
        &self,
        mut object: LogicalVolume,
        deadline: Instant,
    ) -> Result<Volume, VolumeError> {
        let mut outdated = None;
        loop {
            let progress = match self.progress(&object) {
                Some(progress) => progress,
                None => self.wait_progress(&object, outdated.as_deref(), deadline).await?,
            };
            let (error, version) = match progress {
                Progress::Provisioned(volume) => return Ok(volume),
                Progress::Deleted => return Err(VolumeError::DeletedMeanwhile(object.name().to_owned())),
                Progress::Failed { error, version } => (error, version),
            };
            // The caller may never come back after this answer, so that nothing may be left. Only the version with the
            // failure is deleted: if the agent has tried again meanwhile, that counts.
            match self.delete_object(object.name(), version.clone()).await? {
                Deletion::Done | Deletion::Pending => return Err(error),
                Deletion::Conflict => {
                    outdated = version.resource_version;
                    object = self.reread(&object).await?;
                }
            }
        }
    }

    /// Waits for a version of the object that shows progress, except for the one that is known to be outdated.
    async fn wait_progress(
        &self,
        object: &LogicalVolume,
        outdated: Option<&str>,
        deadline: Instant,
    ) -> Result<Progress, VolumeError> {
        let check = |cached: &LogicalVolume| {
            let is_outdated = outdated.is_some() && cached.metadata.resource_version.as_deref() == outdated;
            if is_outdated { None } else { self.progress(cached) }
        };
        if let Some(progress) = self.wait_until(object, deadline, check).await? {
            return Ok(progress);
        }
        let object = self.reread(object).await?;
        self.progress(&object).ok_or_else(|| VolumeError::timeout("created", &object))
    }

    /// Returns the progress of the volume as the object reports it, or `None` while the agent has not written anything.
    fn progress(&self, object: &LogicalVolume) -> Option<Progress> {
        if object.is_deleting() {
            return Some(Progress::Deleted);
        }
        match (object.volume_id(), object.current_bytes()) {
            (Some(_), Some(_)) => Volume::from_object(self.flavor, object, &self.informer).map(Progress::Provisioned),
            // The LV exists. TopoLVM's agent reports its size a moment later, and a failure is one of that report: such
            // an object must never be deleted here
            (Some(_), None) => None,
            (None, _) => object.failure().map(|(code, message)| Progress::Failed {
                error: VolumeError::CreateFailed {
                    node: object.spec.node_name.clone(),
                    code,
                    message: message.to_owned(),
                    is_copy: !object.spec.source.is_empty(),
                },
                version: exact_version(object),
            }),
        }
    }
}
