//! Removing volumes, and waiting until they are gone.

use kube::api::{DeleteParams, Preconditions};
use tokio::time::{Instant, timeout_at};
use topolvm_api::LogicalVolume;

use super::{Error, Kind, Volumes, failed};
use crate::volume_informer::Stopped;

/// How a conditional deletion went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The object is gone.
    Gone,
    /// A finalizer keeps the object until the node agent has removed the LV.
    Leaving,
    /// The object has changed since, or is another one.
    Changed,
}

impl Volumes {
    /// Removes the volume or snapshot with this id and waits until it is gone. What is not there is gone.
    pub(crate) async fn remove(&self, kind: Kind, id: &str, deadline: Instant) -> Result<(), Error> {
        let Some(volume) = self.find(kind, id).await? else {
            return Ok(());
        };
        let name = volume.name();
        let uid_only = Preconditions { uid: volume.metadata.uid.clone(), resource_version: None };
        let known = self.knows(&volume);
        match self.delete(name, uid_only).await? {
            Deletion::Gone => Ok(()),
            Deletion::Leaving | Deletion::Changed => {
                tracing::debug!(name, id, node = volume.spec.node_name, "waiting for the node to remove the volume");
                if self.await_gone(&volume, known, deadline).await? {
                    Ok(())
                } else {
                    Err(Error::Late { what: "removed", name: name.to_owned(), node: volume.spec.node_name.clone() })
                }
            }
        }
    }

    /// Deletes the object if the preconditions hold.
    pub(super) async fn delete(&self, name: &str, preconditions: Preconditions) -> Result<Deletion, Error> {
        let params = DeleteParams::default().preconditions(preconditions);
        match self.api().delete(name, &params).await {
            Ok(deleted) => Ok(deleted.either(|_| Deletion::Leaving, |_| Deletion::Gone)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Deletion::Gone),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Deletion::Changed),
            Err(error) => Err(failed("delete", name)(error)),
        }
    }

    /// Whether the watch has this very object. A watch only goes forward: once it has had an object, its absence means
    /// that the object is gone, while before, it may just not have come that far.
    pub(super) fn knows(&self, volume: &LogicalVolume) -> bool {
        // Asked of the index: those who wait ask at every change of any object, and would unpack theirs each time
        self.watch.name_of(volume.uid()).is_some_and(|name| name == volume.name())
    }

    /// Waits until exactly this object is gone; `false` when it is not at the deadline. `known` tells whether the watch
    /// knew the object before it was deleted: it may have forgotten it since.
    pub(super) async fn await_gone(
        &self,
        volume: &LogicalVolume,
        mut known: bool,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let mut changes = self.watch.changes();
        loop {
            let is_here = self.knows(volume);
            known |= is_here;
            // What the watch cannot tell, the API server can
            let is_gone = !is_here && (known || self.is_gone(volume).await?);
            if is_gone {
                return Ok(true);
            }
            match timeout_at(deadline, changes.next()).await {
                Ok(changed) => changed.map_err(|Stopped| Error::Stopping)?,
                Err(_elapsed) => return self.is_gone(volume).await,
            }
        }
    }

    async fn is_gone(&self, volume: &LogicalVolume) -> Result<bool, Error> {
        let name = volume.name();
        Ok(self.get(name).await?.is_none_or(|found| found.uid() != volume.uid()))
    }
}
