//! Waits until the node agent has provisioned a volume, or has reported why it cannot.

use kube::api::Preconditions;
use tokio::time::Instant;
use topolvm_api::LogicalVolume;

use super::delete::{Deletion, exact_version};
use super::{Volume, VolumeError, Volumes};

/// The status of a `LogicalVolume` that its node agent provisions.
#[derive(Clone, Debug)]
enum Progress {
    Provisioned(Volume),
    Failed(Failure),
    Deleted,
}

/// A failure that the node agent wrote.
#[derive(Clone, Debug)]
struct Failure {
    node: String,
    /// A gRPC code.
    code: i32,
    message: String,
    is_copy: bool,
    /// The object with this failure.
    version: Preconditions,
}

impl Volumes {
    /// Waits until the node agent has provisioned the volume of this object. When it cannot, the object is deleted, and
    /// the error has the agent's code and message.
    pub(super) async fn wait_provisioned(
        &self,
        mut object: LogicalVolume,
        deadline: Instant,
    ) -> Result<Volume, VolumeError> {
        let name = object.name().to_owned();
        let uid = object.uid().to_owned();
        let mut outdated = None;
        loop {
            let progress = match self.progress(&object) {
                Some(progress) => progress,
                None => self.wait_progress(&object, outdated.as_deref(), deadline).await?,
            };
            let failure = match progress {
                Progress::Provisioned(volume) => return Ok(volume),
                Progress::Deleted => return Err(VolumeError::DeletedMeanwhile(name)),
                Progress::Failed(failure) => failure,
            };
            // The caller may never come back after this answer, so that nothing may be left. Only the version with the
            // failure is deleted: if the agent has tried again meanwhile, that counts.
            match self.delete_object(&name, failure.version.clone()).await? {
                Deletion::Done | Deletion::Pending => return Err(failure.into()),
                Deletion::Conflict => {
                    outdated = failure.version.resource_version;
                    object = match self.read(&name).await? {
                        Some(object) if object.uid() == uid => object,
                        _ => return Err(VolumeError::DeletedMeanwhile(name)),
                    };
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
        let name = object.name().to_owned();
        let uid = object.uid();
        // An absence counts only after a presence: an informer that lags has not seen the object yet
        let mut seen = false;
        let check = |cached: Option<&LogicalVolume>| match cached.filter(|cached| cached.uid() == uid) {
            Some(cached) => {
                seen = true;
                let version = cached.metadata.resource_version.as_deref();
                if outdated.is_some() && version == outdated { None } else { self.progress(cached) }
            }
            None => seen.then_some(Progress::Deleted),
        };
        if let Some(progress) = self.wait_until(&name, deadline, check).await? {
            return Ok(progress);
        }
        match self.read(&name).await?.filter(|object| object.uid() == uid) {
            None => Ok(Progress::Deleted),
            Some(object) => self.progress(&object).ok_or_else(|| VolumeError::Timeout {
                awaited: "made",
                name,
                node: object.spec.node_name,
            }),
        }
    }

    /// Returns what the object says about its volume, or `None` while the agent has not written anything.
    fn progress(&self, object: &LogicalVolume) -> Option<Progress> {
        if object.is_deleting() {
            return Some(Progress::Deleted);
        }
        match (object.volume_id(), object.current_bytes()) {
            (Some(_), Some(_)) => Volume::from_object(self.flavor, object, &self.informer).map(Progress::Provisioned),
            // The LV exists. TopoLVM's agent tells its size a moment later, and a failure is one of telling it: such an
            // object must never be deleted here
            (Some(_), None) => None,
            (None, _) => object.failure().map(|(code, message)| {
                Progress::Failed(Failure {
                    node: object.spec.node_name.clone(),
                    code,
                    message: message.to_owned(),
                    is_copy: !object.spec.source.is_empty(),
                    version: exact_version(object),
                })
            }),
        }
    }
}

impl From<Failure> for VolumeError {
    fn from(Failure { node, code, message, is_copy, version: _ }: Failure) -> Self {
        Self::CreateFailed { node, code, message, is_copy }
    }
}
