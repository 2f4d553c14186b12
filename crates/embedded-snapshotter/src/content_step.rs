//! Decides what a content needs next. Pure.

use kube::ResourceExt as _;
use topolvm_kube::has_finalizer;

use crate::content::{Content, Source};

/// The next step for a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<V, H> {
    /// There is nothing to do, or another controller has to do it.
    Wait,
    /// The driver creates snapshots of these volumes, or shows whether those that it creates are ready.
    Create(V),
    /// The driver shows whether this, which existed before, is ready.
    Check(H),
    /// The snapshots exist: the annotation about their creation is removed.
    FinishCreation,
    /// The driver deletes this.
    Delete(H),
    /// The finalizer is removed.
    Release,
}

/// Decides about a content with this driver.
pub(crate) fn next_step<C: Content>(content: &C, driver: &str) -> Step<C::Volumes, C::Handle> {
    let Some(source) = content.source().filter(|_| content.driver() == driver) else { return Step::Wait };
    if must_be_deleted(content) {
        return match content.made() {
            Some(made) if content.deletion_policy() == "Delete" => Step::Delete(made),
            _ if has_finalizer(content.meta(), C::NAMES.finalizer) => Step::Release,
            _ => Step::Wait,
        };
    }
    if content.is_ready() {
        return if content.is_being_created() { Step::FinishCreation } else { Step::Wait };
    }
    match source {
        Source::New(volumes) => Step::Create(volumes),
        Source::Existing(handle) => Step::Check(handle),
        Source::OfGroup => Step::Wait,
    }
}

/// Returns whether the content goes, and its snapshots with it unless the policy is `Retain`. An administrator who
/// deletes the object alone does not delete the snapshots of an object that exists.
fn must_be_deleted<C: Content>(content: &C) -> bool {
    if content.meta().deletion_timestamp.is_none() {
        return false;
    }
    let was_never_bound = content.is_pre_provisioned() && content.bound_uid().unwrap_or_default().is_empty();
    was_never_bound || !content.is_being_created() && content.annotations().contains_key(C::NAMES.being_deleted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::group_snapshot::GroupHandle;
    use crate::snapshot_content::{GROUP_HANDLE, NAMES};
    use crate::tests::content::{dynamic, pre_provisioned};
    use crate::tests::group_content::{dynamic_group, pre_provisioned_group};

    type Step = super::Step<String, String>;
    type GroupStep = super::Step<Vec<String>, GroupHandle>;

    fn group(group: &str, snapshots: &[&str]) -> GroupHandle {
        let snapshots = snapshots.iter().map(|&snapshot| snapshot.to_owned()).collect();
        GroupHandle { group: group.to_owned(), snapshots }
    }

    fn delete_group(id: &str, snapshots: &[&str]) -> GroupStep {
        GroupStep::Delete(group(id, snapshots))
    }

    /// The VolumeGroupSnapshot is being deleted, and the content with it.
    fn group_deleting() -> Value {
        let annotations = json!({crate::group_snapshot::NAMES.being_deleted: "yes"});
        json!({"metadata": {"annotations": annotations, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    }

    fn group_made(ready: bool) -> Value {
        json!({"status": {
            "volumeGroupSnapshotHandle": "g-1", "readyToUse": ready,
            "volumeSnapshotInfoList": [{"volumeHandle": "v-1", "snapshotHandle": "s-1"}],
        }})
    }

    fn create() -> Step {
        Step::Create("v-1".to_owned())
    }

    fn check(snapshot: &str) -> Step {
        Step::Check(snapshot.to_owned())
    }

    fn delete(snapshot: &str) -> Step {
        Step::Delete(snapshot.to_owned())
    }

    fn creating() -> Value {
        json!({"metadata": {"annotations": {NAMES.being_created: "yes"}}})
    }

    /// The VolumeSnapshot is being deleted, and the content with it.
    fn deleting() -> Value {
        json!({"metadata": {"annotations": {NAMES.being_deleted: "yes"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
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
        &[made(true), retain(), json!({"metadata": {"annotations": {NAMES.being_deleted: "yes"}}})], Step::Wait,
    )]
    #[case::member_that_is_not_ready(
        &[made(false), json!({"status": {"volumeGroupSnapshotHandle": "g"}})], check("s-1"),
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

    #[rstest]
    #[case::new(&[], GroupStep::Create(vec!["v-1".to_owned(), "v-2".to_owned()]))]
    #[case::without_volumes(&[json!({"spec": {"source": null}})], GroupStep::Wait)]
    #[case::of_another_driver(&[json!({"spec": {"driver": "other"}})], GroupStep::Wait)]
    #[case::ready(&[group_made(true)], GroupStep::Wait)]
    #[case::deleted(&[group_made(true), group_deleting()], delete_group("g-1", &["s-1"]))]
    #[case::deleted_without_annotation(
        &[group_made(true), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})], GroupStep::Wait,
    )]
    #[case::retained(&[group_made(true), retain(), group_deleting()], GroupStep::Release)]
    #[case::deleted_group(&[json!({"status": {"readyToUse": null}}), group_deleting()], GroupStep::Release)]
    fn step_for_a_dynamic_group(#[case] changes: &[Value], #[case] expected: GroupStep) {
        assert_eq!(next_step(&dynamic_group(changes), "topolvm.io"), expected);
    }

    #[rstest]
    #[case::new(&[], GroupStep::Check(group("g-0", &["s-1", "s-2"])))]
    #[case::deleted(
        &[json!({"status": {"volumeGroupSnapshotHandle": "g-0", "readyToUse": true}}), group_deleting()],
        delete_group("g-0", &["s-1", "s-2"]),
    )]
    #[case::deleted_before_the_first_check(&[group_deleting()], GroupStep::Release)]
    #[case::deleted_before_it_was_bound(&[
        json!({"status": {"volumeGroupSnapshotHandle": "g-0", "readyToUse": true}}),
        json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"volumeGroupSnapshotRef": {"uid": null}},
        }),
    ], delete_group("g-0", &["s-1", "s-2"]))]
    fn step_for_a_pre_provisioned_group(#[case] changes: &[Value], #[case] expected: GroupStep) {
        assert_eq!(next_step(&pre_provisioned_group(changes), "topolvm.io"), expected);
    }
}
