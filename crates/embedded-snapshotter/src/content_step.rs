//! Decides what a VolumeSnapshotContent needs next. Pure.

use kube::ResourceExt as _;
use topolvm_api::SnapshotContent;
use topolvm_kube::has_finalizer;

use crate::annotations::{BEING_CREATED, BEING_DELETED, FINALIZER, GROUP_HANDLE};

/// The next step for a VolumeSnapshotContent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is nothing to do, or another controller has to do it.
    Wait,
    /// The driver creates a snapshot of this volume, or shows whether the one that it creates is ready.
    Create { volume: String },
    /// The driver shows whether this snapshot, which existed before, is ready.
    Check { snapshot: String },
    /// The snapshot exists: the annotation about its creation is removed.
    FinishCreation,
    /// The driver deletes this snapshot.
    Delete { snapshot: String },
    /// The finalizer is removed.
    Release,
}

/// Decides about a content with this driver.
pub(crate) fn next_step(content: &SnapshotContent, driver: &str) -> Step {
    let (source, status) = (&content.spec.source, &content.status);
    if content.spec.driver != driver || source.volume_handle.is_none() && source.snapshot_handle.is_none() {
        return Step::Wait;
    }
    if must_be_deleted(content) {
        return match &status.snapshot_handle {
            // The snapshots of a group are deleted with the group
            Some(snapshot)
                if content.spec.deletion_policy == "Delete" && status.volume_group_snapshot_handle.is_none() =>
            {
                Step::Delete { snapshot: snapshot.clone() }
            }
            _ if has_finalizer(&content.metadata, FINALIZER) => Step::Release,
            _ => Step::Wait,
        };
    }
    if is_ready(content) {
        return if is_being_created(content) { Step::FinishCreation } else { Step::Wait };
    }
    match (&source.snapshot_handle, &source.volume_handle) {
        (Some(snapshot), _) => Step::Check { snapshot: status.snapshot_handle.as_ref().unwrap_or(snapshot).clone() },
        (None, Some(volume)) if !content.annotations().contains_key(GROUP_HANDLE) => {
            Step::Create { volume: volume.clone() }
        }
        (None, _) => Step::Wait,
    }
}

/// Returns whether a volume can be restored from the snapshot.
pub(crate) fn is_ready(content: &SnapshotContent) -> bool {
    content.status.ready_to_use == Some(true)
}

/// Returns whether a call to create the snapshot may have an effect that the status does not show.
pub(crate) fn is_being_created(content: &SnapshotContent) -> bool {
    content.annotations().contains_key(BEING_CREATED)
}

/// Returns whether the content goes, and its snapshot with it unless the policy is `Retain`. An administrator who
/// deletes the object alone does not delete the snapshot of a VolumeSnapshot that exists.
fn must_be_deleted(content: &SnapshotContent) -> bool {
    if content.metadata.deletion_timestamp.is_none() {
        return false;
    }
    let bound_to = content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default();
    let was_never_bound = content.spec.source.snapshot_handle.is_some() && bound_to.is_empty();
    was_never_bound || !is_being_created(content) && content.annotations().contains_key(BEING_DELETED)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::content::{dynamic, pre_provisioned};

    fn create() -> Step {
        Step::Create { volume: "v-1".to_owned() }
    }

    fn check(snapshot: &str) -> Step {
        Step::Check { snapshot: snapshot.to_owned() }
    }

    fn delete(snapshot: &str) -> Step {
        Step::Delete { snapshot: snapshot.to_owned() }
    }

    fn creating() -> Value {
        json!({"metadata": {"annotations": {BEING_CREATED: "yes"}}})
    }

    /// The VolumeSnapshot is being deleted, and the content with it.
    fn deleting() -> Value {
        json!({"metadata": {"annotations": {BEING_DELETED: "yes"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    }

    fn made(ready: bool) -> Value {
        json!({"status": {"snapshotHandle": "s-1", "readyToUse": ready}})
    }

    fn failed() -> Value {
        json!({"status": {"readyToUse": false, "error": {"message": "full"}}})
    }

    fn retain() -> Value {
        json!({"spec": {"deletionPolicy": "Retain"}})
    }

    #[rstest]
    #[case::new(&[], create())]
    #[case::call_without_answer(&[creating()], create())]
    #[case::failed(&[failed()], create())]
    #[case::not_ready(&[made(false)], create())]
    #[case::ready(&[made(true)], Step::Wait)]
    #[case::ready_with_annotation(&[made(true), creating()], Step::FinishCreation)]
    #[case::of_another_driver(&[json!({"spec": {"driver": "other"}})], Step::Wait)]
    #[case::without_source(&[json!({"spec": {"source": null}})], Step::Wait)]
    #[case::member_of_a_group(&[json!({"metadata": {"annotations": {GROUP_HANDLE: "g"}}})], Step::Wait)]
    #[case::deleted(&[made(true), deleting()], delete("s-1"))]
    #[case::deleted_before_it_is_ready(&[made(false), deleting()], delete("s-1"))]
    #[case::deleted_with_its_annotation(&[made(true), creating(), deleting()], Step::FinishCreation)]
    #[case::deleted_without_outcome(&[creating(), deleting()], create())]
    #[case::deleted_after_a_failure(&[failed(), deleting()], Step::Release)]
    #[case::deleted_and_retained(&[made(true), retain(), deleting()], Step::Release)]
    #[case::deleted_snapshot(&[json!({"status": {"readyToUse": null}}), deleting()], Step::Release)]
    #[case::released(&[failed(), deleting(), json!({"metadata": {"finalizers": null}})], Step::Wait)]
    #[case::deleted_by_hand(
        &[made(true), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})], Step::Wait,
    )]
    #[case::retained_snapshot_is_deleted(
        &[made(true), retain(), json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}})], Step::Wait,
    )]
    #[case::deleted_in_a_group(
        &[made(true), json!({"status": {"volumeGroupSnapshotHandle": "g"}}), deleting()], Step::Release,
    )]
    fn step_for_a_dynamic_content(#[case] changes: &[Value], #[case] expected: Step) {
        assert_eq!(next_step(&dynamic(changes), "topolvm.io"), expected);
    }

    #[rstest]
    #[case::new(&[], check("s-0"))]
    #[case::unbound(&[json!({"spec": {"volumeSnapshotRef": {"uid": null}}})], check("s-0"))]
    #[case::not_ready(&[made(false)], check("s-1"))]
    #[case::ready(&[made(true)], Step::Wait)]
    #[case::deleted(&[made(true), deleting()], delete("s-1"))]
    #[case::deleted_before_it_was_bound(&[
        made(true),
        json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"volumeSnapshotRef": {"uid": null}},
        }),
    ], delete("s-1"))]
    #[case::deleted_before_the_first_check(&[deleting()], Step::Release)]
    #[case::deleted_and_retained(&[made(true), retain(), deleting()], Step::Release)]
    fn step_for_a_pre_provisioned_content(#[case] changes: &[Value], #[case] expected: Step) {
        assert_eq!(next_step(&pre_provisioned(changes), "topolvm.io"), expected);
    }
}
