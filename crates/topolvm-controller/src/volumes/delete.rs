//! Deletes volumes, and waits until they are gone.

use kube::api::{DeleteParams, Preconditions};
use tokio::time::{Instant, timeout_at};
use topolvm_api::{LogicalVolume, SnapshotGroup};

use super::objects::api_error;
use super::{VolumeError, VolumeKind, VolumeObjects};

/// The result of a conditional deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The object is gone.
    Done,
    /// A finalizer keeps the object until the node agent has removed the LV.
    Pending,
    /// The object has changed since it was read, or is another one.
    Conflict,
}

impl VolumeObjects {
    /// Deletes the volume or snapshot with this id and waits until it is gone. One that does not exist is gone.
    pub(crate) async fn delete(&self, kind: VolumeKind, id: &str, deadline: Instant) -> Result<(), VolumeError> {
        match self.find(kind, id).await? {
            Some(object) => self.delete_object_and_wait(&object, deadline).await,
            None => Ok(()),
        }
    }

    /// Deletes the snapshot with this id as [`delete`](Self::delete) does, unless it is a member of a group.
    pub(crate) async fn delete_snapshot(&self, id: &str, deadline: Instant) -> Result<(), VolumeError> {
        let Some(object) = self.find(VolumeKind::Snapshot, id).await? else { return Ok(()) };
        match SnapshotGroup::of(self.flavor, &object) {
            Some(group) => Err(VolumeError::MemberOfGroup { snapshot: id.to_owned(), id: group.id }),
            None => self.delete_object_and_wait(&object, deadline).await,
        }
    }

    /// Deletes this very object and waits until it is gone.
    pub(super) async fn delete_object_and_wait(
        &self,
        object: &LogicalVolume,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let name = object.name();
        let uid_only = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
        let was_cached = self.is_cached(object);
        match self.delete_object(name, uid_only).await? {
            Deletion::Done => Ok(()),
            Deletion::Pending | Deletion::Conflict => {
                tracing::debug!(name, node = object.spec.node_name, "waiting for the node to remove the volume");
                let is_deleted = self.wait_deleted(object, was_cached, deadline).await?;
                is_deleted.then_some(()).ok_or_else(|| VolumeError::timeout("removed", object))
            }
        }
    }

    /// Deletes the object if the preconditions hold.
    pub(super) async fn delete_object(
        &self,
        name: &str,
        preconditions: Preconditions,
    ) -> Result<Deletion, VolumeError> {
        let params = DeleteParams::default().preconditions(preconditions);
        match self.api().delete(name, &params).await {
            Ok(deleted) => Ok(deleted.either(|_| Deletion::Pending, |_| Deletion::Done)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Deletion::Done),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Deletion::Conflict),
            Err(error) => Err(api_error("delete", name)(error)),
        }
    }

    /// Returns whether the informer has this very object. It only goes forward: once it has had an object, its absence
    /// means that the object is gone, while before, it may just not have come that far.
    pub(super) fn is_cached(&self, object: &LogicalVolume) -> bool {
        self.informer.cache.get(object.name()).is_some_and(|cached| cached.uid() == object.uid())
    }

    /// Waits until exactly this object is gone; `false` if it is not at the deadline. `was_cached` is true if the
    /// informer had the object before it was deleted: it may have dropped it since.
    pub(super) async fn wait_deleted(
        &self,
        object: &LogicalVolume,
        mut was_cached: bool,
        deadline: Instant,
    ) -> Result<bool, VolumeError> {
        let mut changes = self.informer.changes();
        loop {
            let is_cached = self.is_cached(object);
            was_cached |= is_cached;
            // If the informer does not know it, the API server does
            let is_gone = !is_cached && (was_cached || self.is_gone(object).await?);
            if is_gone {
                return Ok(true);
            }
            match timeout_at(deadline, changes.changed()).await {
                Ok(changed) => changed.map_err(|_| VolumeError::ShuttingDown)?,
                Err(_elapsed) => return self.is_gone(object).await,
            }
        }
    }

    async fn is_gone(&self, object: &LogicalVolume) -> Result<bool, VolumeError> {
        Ok(self.read(object.name()).await?.is_none_or(|found| found.uid() != object.uid()))
    }
}

/// Returns preconditions that hold for exactly this version of the object.
pub(super) fn exact_version(object: &LogicalVolume) -> Preconditions {
    Preconditions { uid: object.metadata.uid.clone(), resource_version: object.metadata.resource_version.clone() }
}
