//! Writes objects that request an operation: status, finalizer and deletion. Nothing in here knows what is done.
//!
//! Each write is on condition that the object is the one that was read. One that has changed meanwhile is left for the
//! watch to bring.

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use json_patch::PatchOperation;
use kube::api::{DeleteParams, PatchParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use topolvm_api::OperationStatus;
use topolvm_kube::api_server::{ApiError, DEADLINE, call};
use topolvm_kube::{add_finalizer, json_patch, remove_finalizers, replace_status_if_unchanged};

/// Longest pause before the clock is read again: it may be set, and a machine may sleep.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The objects of one kind of operation.
#[derive(Clone, Debug)]
pub(crate) struct OperationObjects<K> {
    api: Api<K>,
    finalizer: &'static str,
}

impl<K: Resource + Clone + DeserializeOwned + Debug> OperationObjects<K> {
    /// Makes a writer of objects that have this finalizer while work is under way.
    pub(crate) const fn new(api: Api<K>, finalizer: &'static str) -> Self {
        Self { api, finalizer }
    }

    /// Replaces the status. Returns the object; `None` if it has changed meanwhile, or is gone.
    pub(crate) async fn write_status(
        &self,
        metadata: &ObjectMeta,
        status: &impl Serialize,
    ) -> Result<Option<K>, ApiError> {
        let patch = json_patch(replace_status_if_unchanged(metadata, status));
        let name = metadata.name.as_deref().unwrap_or_default();
        unless_changed(call(DEADLINE, self.api.patch_status(name, &PatchParams::default(), &patch)).await)
    }

    /// Adds the finalizer: a deletion waits until the work has ended.
    pub(crate) async fn hold(&self, metadata: &ObjectMeta) -> Result<Option<K>, ApiError> {
        self.patch(metadata, add_finalizer(metadata, self.finalizer)).await
    }

    /// Removes the finalizer.
    pub(crate) async fn release(&self, metadata: &ObjectMeta) -> Result<Option<K>, ApiError> {
        self.patch(metadata, remove_finalizers(metadata, &[self.finalizer])).await
    }

    /// Deletes the object, and no other of its name.
    pub(crate) async fn delete(&self, metadata: &ObjectMeta) -> Result<(), ApiError> {
        let exactly = Preconditions { uid: metadata.uid.clone(), resource_version: None };
        let params = DeleteParams::default().preconditions(exactly);
        let name = metadata.name.as_deref().unwrap_or_default();
        unless_changed(call(DEADLINE, self.api.delete(name, &params)).await).map(drop)
    }

    async fn patch(&self, metadata: &ObjectMeta, operations: Vec<PatchOperation>) -> Result<Option<K>, ApiError> {
        let name = metadata.name.as_deref().unwrap_or_default();
        let patch = json_patch(operations);
        unless_changed(call(DEADLINE, self.api.patch(name, &PatchParams::default(), &patch)).await)
    }
}

/// Returns how long a finished operation is kept from now on: `None` for one that has not ended.
pub(crate) fn time_to_live(status: &OperationStatus, ttl_seconds: i32, now: Timestamp) -> Option<Duration> {
    let left = status.expires_at(ttl_seconds)?.duration_since(now);
    Some(Duration::try_from(left).unwrap_or_default().min(LONGEST_PAUSE))
}

/// Returns `None` in place of an error that the object has been replaced or deleted.
fn unless_changed<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.status(), Some(404 | 409 | 422)) => {
            tracing::debug!(%error, "the object has changed meanwhile");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const END: Timestamp = Timestamp::constant(1_767_225_600, 0);

    #[rstest]
    #[case::at_once(0, 0, Duration::ZERO)]
    #[case::soon(100, 40, Duration::from_mins(1))]
    #[case::over(100, 200, Duration::ZERO)]
    #[case::far_away(604_800, 0, LONGEST_PAUSE)]
    fn finished_operation_is_kept_for_its_ttl(#[case] ttl: i32, #[case] passed: i64, #[case] expected: Duration) {
        let mut status = OperationStatus::default();
        let now = Timestamp::from_second(END.as_second() + passed).unwrap();
        assert_eq!(time_to_live(&status, ttl, now), None);
        status.succeed("done", END);
        assert_eq!(time_to_live(&status, ttl, now), Some(expected));
    }
}
