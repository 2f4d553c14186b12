//! Makes a LogicalVolume that gets an existing LV, and waits until it has it.

use std::time::Duration;

use cli_runtime::connection::Cluster;
use cli_runtime::request::RequestError;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource as _};
use topolvm_api::{LogicalVolume, LogicalVolumeSpec};

use super::find;
use super::owner::{self, Holder};
use crate::error::OrphanError;

/// Time in which an agent that works gives an LV to an object.
const LIMIT: Duration = Duration::from_mins(2);

/// gRPC code of an object that waits because there is an LV of an earlier object of its name.
const ALREADY_EXISTS: i32 = 6;

/// Purpose for which an LV is adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Restore,
    Delete,
}

/// An LV that an object is to get.
#[derive(Clone, Debug)]
pub(super) struct Adoption<'a> {
    pub(super) purpose: Purpose,
    pub(super) node: &'a str,
    pub(super) lv: &'a str,
    /// Name of the object; without it that of the object that is gone.
    pub(super) name: Option<String>,
    /// Further annotations of the object.
    pub(super) annotations: Vec<(&'static str, String)>,
}

/// Returns the name of the object that gets an LV to be deleted with it.
pub(super) fn deletion_name(lv: &str) -> String {
    format!("orphan-{}", lv.to_lowercase())
}

impl Adoption<'_> {
    /// Finds the object that an earlier run for the same purpose has made. An LV that any other object has, or is
    /// getting, is an error.
    pub(super) async fn find_earlier(&self, cluster: &Cluster) -> Result<Option<LogicalVolume>, OrphanError> {
        let Some(holder) = owner::find(cluster, self.node, self.lv).await? else { return Ok(None) };
        let is_earlier = match &holder {
            Holder::Attempt(volume) => self.is_of_purpose(volume) && !volume.is_deleting(),
            Holder::Adopter(volume) if self.is_of_purpose(volume) && !volume.is_deleting() => {
                self.purpose == Purpose::Restore || owner::persistent_volume(cluster, volume).await?.is_none()
            }
            Holder::Adopter(_) | Holder::Owner(_) => false,
        };
        match holder {
            Holder::Attempt(volume) | Holder::Adopter(volume) if is_earlier => Ok(Some(volume)),
            Holder::Attempt(volume) => Err(OrphanError::Pending(volume.name().to_owned())),
            Holder::Adopter(volume) | Holder::Owner(volume) => {
                let owner = owner::describe(cluster, &volume).await?;
                Err(OrphanError::Owned { lv: self.lv.to_owned(), owner })
            }
        }
    }

    /// An object that deletes an LV is never restored, and the other way round.
    fn is_of_purpose(&self, volume: &LogicalVolume) -> bool {
        (volume.name() == deletion_name(self.lv)) == (self.purpose == Purpose::Delete)
    }

    /// Takes the object of an earlier run or makes one, and returns it when it has the LV. An object that cannot have
    /// the LV is deleted again.
    pub(super) async fn run(
        self,
        cluster: &Cluster,
        earlier: Option<LogicalVolume>,
    ) -> Result<LogicalVolume, OrphanError> {
        let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
        let volume = match earlier {
            Some(volume) => volume,
            None => self.create(cluster, &api).await?,
        };
        let answered = await_answer(&api, volume.name()).await?;
        let Err(error) = had_lv(&answered) else { return Ok(answered) };
        let version = answered.metadata.resource_version.clone();
        delete(cluster, &api, &answered, version).await?;
        Err(error)
    }

    async fn create(&self, cluster: &Cluster, api: &Api<LogicalVolume>) -> Result<LogicalVolume, OrphanError> {
        let Some(orphan) = find(cluster, self.node, self.lv).await? else {
            return Err(OrphanError::NoOrphan { node: self.node.to_owned(), lv: self.lv.to_owned() });
        };
        let name = self.name.clone().unwrap_or_else(|| orphan.logical_volume.clone());
        if name.is_empty() {
            return Err(OrphanError::NoName(self.lv.to_owned()));
        }
        let spec = LogicalVolumeSpec {
            name,
            node_name: self.node.to_owned(),
            size: Quantity(orphan.bytes.to_string()),
            device_class: orphan.device_class,
            ..LogicalVolumeSpec::default()
        };
        let mut volume = LogicalVolume::new(cluster.flavor, spec);
        let annotations = volume.metadata.annotations.get_or_insert_default();
        annotations.insert(cluster.flavor.adopt().to_owned(), self.lv.to_owned());
        annotations.extend(self.annotations.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        match api.create(&kube::api::PostParams::default(), &volume).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Err(OrphanError::Exists { kind: "LogicalVolume", name: volume.spec.name })
            }
            created => Ok(created.map_err(|error| failed(cluster, "create", error))?),
        }
    }
}

/// Waits until an object has the LV that it asks for, and returns it.
pub(crate) async fn await_lv(api: &Api<LogicalVolume>, name: &str) -> Result<LogicalVolume, OrphanError> {
    let answered = await_answer(api, name).await?;
    had_lv(&answered)?;
    Ok(answered)
}

/// Checks that an object has its LV. With a volume a failure is that of a growth.
fn had_lv(volume: &LogicalVolume) -> Result<(), OrphanError> {
    let (_, message) = volume.failure().unwrap_or_default();
    volume.volume_id().map(drop).ok_or_else(|| OrphanError::Refused(message.to_owned()))
}

async fn await_answer(api: &Api<LogicalVolume>, name: &str) -> Result<LogicalVolume, OrphanError> {
    let answered = tokio::time::timeout(LIMIT, until_answered(api, name)).await;
    answered.map_err(|_| OrphanError::Slow(name.to_owned()))?
}

/// Waits until an object has its LV, or a failure.
async fn until_answered(api: &Api<LogicalVolume>, name: &str) -> Result<LogicalVolume, OrphanError> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut objects = watcher(api.clone(), config).default_backoff().applied_objects().boxed();
    loop {
        let next = objects.try_next().await.map_err(|error| OrphanError::Watch(Box::new(error)))?;
        let Some(object) = next else { return Err(OrphanError::Slow(name.to_owned())) };
        // The status of an object that a tool has restored reports that it waits, until the object requests the LV
        let has_failed = object.failure().is_some_and(|(code, _)| code != ALREADY_EXISTS);
        if object.volume_id().is_some() || has_failed {
            return Ok(object);
        }
    }
}

/// Deletes an object, unless it is another one by now, or has changed since it had this version.
pub(super) async fn delete(
    cluster: &Cluster,
    api: &Api<LogicalVolume>,
    volume: &LogicalVolume,
    resource_version: Option<String>,
) -> Result<(), OrphanError> {
    let exactly = Preconditions { uid: Some(volume.uid().to_owned()), resource_version };
    let params = DeleteParams::default().preconditions(exactly);
    match api.delete(volume.name(), &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).map_err(|error| failed(cluster, "delete", error).into()),
    }
}

/// Makes the error of a failed request about LogicalVolumes.
pub(crate) fn failed(cluster: &Cluster, verb: &'static str, error: kube::Error) -> RequestError {
    RequestError::new(verb, format!("{}.{}", LogicalVolume::plural(&cluster.flavor), cluster.flavor), error)
}
