//! The objects of volumes and snapshots: reads them from the API server and waits for their changes in the cache.

use kube::{Api, Client};
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, LogicalVolume};

use super::{ApiFailure, VolumeError};
use crate::volume_informer::{Stopped, VolumeInformer};

/// The `LogicalVolume` objects of the cluster.
#[derive(Clone)]
pub(crate) struct VolumeObjects {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) informer: VolumeInformer,
}

impl VolumeObjects {
    pub(super) fn api(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &self.flavor)
    }

    /// Reads the object from the API server.
    pub(super) async fn read(&self, name: &str) -> Result<Option<LogicalVolume>, VolumeError> {
        self.api().get_opt(name).await.map_err(api_error("read", name))
    }

    /// Reads this very object again from the API server; an error if it is gone.
    pub(super) async fn reread(&self, object: &LogicalVolume) -> Result<LogicalVolume, VolumeError> {
        let found = self.read(object.name()).await?.filter(|found| found.uid() == object.uid());
        found.ok_or_else(|| VolumeError::DeletedMeanwhile(object.name().to_owned()))
    }

    /// Waits until `check` returns something for this very object in the cache; `None` when the deadline has passed.
    /// The caller then reads the object once from the API server: a watch that hangs must not hide what has been done.
    pub(super) async fn wait_until<T>(
        &self,
        object: &LogicalVolume,
        deadline: Instant,
        mut check: impl FnMut(&LogicalVolume) -> Option<T>,
    ) -> Result<Option<T>, VolumeError> {
        let (name, uid) = (object.name(), object.uid());
        // An absence counts only after a presence: an informer that lags has not seen the object yet
        let mut seen = false;
        let check = |cached: Option<&LogicalVolume>| match cached.filter(|cached| cached.uid() == uid) {
            Some(cached) => {
                seen = true;
                check(cached).map(Ok)
            }
            None => seen.then(|| Err(VolumeError::DeletedMeanwhile(name.to_owned()))),
        };
        match tokio::time::timeout_at(deadline, self.informer.wait_until(name, check)).await {
            Ok(Ok(answer)) => answer.map(Some),
            Ok(Err(Stopped)) => Err(VolumeError::ShuttingDown),
            Err(_elapsed) => Ok(None),
        }
    }
}

/// Returns a function for `map_err` on calls of the API server.
pub(super) fn api_error(action: &'static str, name: &str) -> impl FnOnce(kube::Error) -> VolumeError {
    let name = name.to_owned();
    move |source| VolumeError::Api { action, name, source: ApiFailure::from(source) }
}
