//! VolumeSnapshotContents of snapshots that exist already.

use serde_json::{Value, json};

use super::dynamic_contents::{readable_secret, secret, with_source};
use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{Compared, DRIVER, HANDLE, SELF, Scenario, Step, Target, Until};

/// Returns a content of a snapshot for the VolumeSnapshot `p`.
fn content(handle: &str, patch: Value) -> Value {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": ""},
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": "p", "namespace": SELF},
        },
    });
    merge(content, patch)
}

/// Returns the VolumeSnapshot `p`.
fn snapshot() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "p"},
        "spec": {"source": {"volumeSnapshotContentName": SELF}},
    })
}

pub(super) fn scenarios() -> Vec<Scenario> {
    // The VolumeSnapshot `s` has left its snapshot
    let released =
        |name| with_source(name).snapshot_class(json!({"deletionPolicy": "Retain"})).snapshot("s", "source").ready("s");
    let is_ready = || Until::Field("/status/readyToUse", true.into());
    let pre_provisioned = |name, patch: Value| {
        released(name)
            .create(Kind::SnapshotContent, SELF, content(HANDLE, patch))
            .wait(Kind::SnapshotContent, SELF, is_ready())
            // Otherwise the agent keeps the snapshot for its first content
            .delete(Kind::Snapshot, "s")
            .wait(Kind::Snapshot, "s", Until::Gone)
            .step(Step::Delete(Target::ContentOf("s")))
            .wait_content("s", Until::Gone)
    };
    let bound = |name, patch: Value| {
        pre_provisioned(name, patch)
            .create(Kind::Snapshot, "p", snapshot())
            .wait(Kind::Snapshot, "p", is_ready())
            .record()
    };
    let volume_gone = |scenario: Scenario| scenario.step(Step::Wait(Target::SnapshotVolumeOf("s"), Until::Gone));
    let failing = |name, class: Value, content: Value| {
        Scenario::new(name).comparing(Compared::Snapshots).snapshot_class(class).create(
            Kind::SnapshotContent,
            SELF,
            content,
        )
    };
    let check_failed = |text| Until::Event("SnapshotContentCheckandUpdateFailed", text);
    let with_class = || json!({"spec": {"volumeSnapshotClassName": SELF}});
    vec![
        pre_provisioned("pre-provisioned", json!({})).record(),
        bound("pre-provisioned-and-bound", json!({})),
        volume_gone(
            bound("pre-provisioned-deleted", json!({}))
                .delete(Kind::Snapshot, "p")
                .wait(Kind::Snapshot, "p", Until::Gone)
                .wait(Kind::SnapshotContent, SELF, Until::Gone),
        ),
        bound("pre-provisioned-retained", json!({"spec": {"deletionPolicy": "Retain"}}))
            .delete(Kind::Snapshot, "p")
            .wait(Kind::Snapshot, "p", Until::Gone)
            .delete(Kind::SnapshotContent, SELF)
            .wait(Kind::SnapshotContent, SELF, Until::Gone)
            .record(),
        // Without a VolumeSnapshot it has no finalizer
        pre_provisioned("pre-provisioned-never-bound", json!({}))
            .delete(Kind::SnapshotContent, SELF)
            .wait(Kind::SnapshotContent, SELF, Until::Gone)
            .record(),
        bound("pre-provisioned-with-class", with_class()),
        failing("pre-provisioned-missing", json!({}), content("missing", json!({})))
            .wait(Kind::SnapshotContent, SELF, check_failed("missing"))
            .create(Kind::Snapshot, "p", snapshot())
            .wait(Kind::Snapshot, "p", Until::Field("/status/readyToUse", false.into())),
        failing(
            "pre-provisioned-with-missing-class",
            json!({}),
            content("x", json!({"spec": {"volumeSnapshotClassName": "missing"}})),
        )
        .wait(Kind::SnapshotContent, SELF, check_failed("missing")),
        failing("list-secret-missing", secret("snapshotter-list", "missing"), content("x", with_class())).wait(
            Kind::SnapshotContent,
            SELF,
            check_failed(""),
        ),
        failing(
            "list-secret-unknown-token",
            secret("snapshotter-list", "${volumesnapshot.name}"),
            content("x", with_class()),
        )
        .wait(Kind::SnapshotContent, SELF, check_failed("volumesnapshot.name")),
        readable_secret(
            with_source("list-secret-by-template")
                .snapshot_class(merge(
                    json!({"deletionPolicy": "Retain"}),
                    secret("snapshotter-list", "of-${volumesnapshotcontent.name}"),
                ))
                .snapshot("s", "source")
                .ready("s"),
            "of-list-secret-by-template",
        )
        .create(Kind::SnapshotContent, SELF, content(HANDLE, with_class()))
        .wait(Kind::SnapshotContent, SELF, is_ready()),
    ]
}
