//! Claims whose data source is a snapshot.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, BETA, DRIVER, SELF, Scenario, Step, Target, Until, on, parameters, size};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, parameters(&json!({"topolvm.io/device-class": "thin"})));
    let with_snapshot = |name| {
        class(name)
            .claim("source", [on(ALPHA)])
            .bound("source")
            .create(Kind::SnapshotClass, SELF, snapshot_class(DRIVER))
            .create(Kind::Snapshot, "s", snapshot("source"))
            .wait(Kind::Snapshot, "s", Until::Field("/status/readyToUse", true.into()))
    };
    let of = |name: &str| {
        json!({"spec": {"dataSource": {
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name,
        }}})
    };
    let foreign = |scenario: Scenario| {
        scenario.create(Kind::SnapshotContent, SELF, content("other.example.com")).create(
            Kind::Snapshot,
            "s",
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
                "spec": {"source": {"volumeSnapshotContentName": SELF}},
            }),
        )
    };
    vec![
        with_snapshot("snapshot").claim("a", [on(ALPHA), of("s")]).bound("a").deleted("a"),
        with_snapshot("snapshot-larger").claim("a", [on(ALPHA), of("s"), size("1Gi")]).bound("a"),
        with_snapshot("snapshot-smaller").claim("a", [on(ALPHA), of("s"), size("32Mi")]).failed("a", "size"),
        with_snapshot("snapshot-on-other-node").claim("a", [on(BETA), of("s")]).failed("a", "").unselected("a"),
        with_snapshot("snapshot-as-block")
            .claim("a", [on(ALPHA), of("s"), json!({"spec": {"volumeMode": "Block"}})])
            .failed("a", "mode"),
        with_snapshot("snapshot-by-reference")
            .claim("a", [on(ALPHA), json!({"spec": {"dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s",
            }}})])
            .bound("a"),
        with_snapshot("snapshot-source-deleted").deleted("source").claim("a", [on(ALPHA), of("s")]).bound("a"),
        with_snapshot("snapshot-being-deleted")
            .patch(Kind::Snapshot, "s", json!({"metadata": {"finalizers": ["example.com/keep"]}}))
            .delete(Kind::Snapshot, "s")
            .claim("a", [on(ALPHA), of("s")])
            .failed("a", "deleted"),
        class("snapshot-missing").claim("a", [on(ALPHA), of("missing")]).failed("a", "missing"),
        class("snapshot-not-ready")
            .create(Kind::SnapshotClass, SELF, snapshot_class(DRIVER))
            .create(Kind::Snapshot, "s", snapshot("missing"))
            .claim("a", [on(ALPHA), of("s")])
            .failed("a", "not bound"),
        class("snapshot-ready-later")
            .claim("source", [])
            .create(Kind::SnapshotClass, SELF, snapshot_class(DRIVER))
            .create(Kind::Snapshot, "s", snapshot("source"))
            .claim("a", [on(ALPHA), of("s")])
            .failed("a", "")
            .select("source", ALPHA)
            .bound("a"),
        foreign(class("snapshot-of-another-driver"))
            .wait(Kind::Snapshot, "s", Until::Field("/status/boundVolumeSnapshotContentName", SELF.into()))
            .step(Step::PatchStatus(
                Target::Named(Kind::SnapshotContent, SELF.to_owned()),
                json!({"status": {"readyToUse": true, "snapshotHandle": "x", "restoreSize": 1, "creationTime": 1}}),
            ))
            .claim("a", [on(ALPHA), of("s")])
            .failed("a", "driver"),
        class("snapshot-of-other-namespace")
            .claim("a", [on(ALPHA), json!({"spec": {"dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s", "namespace": "snapshot",
            }}})])
            .decided("a"),
    ]
}

fn snapshot_class(driver: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": ""},
        "driver": driver, "deletionPolicy": "Delete",
    })
}

fn snapshot(claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s"},
        "spec": {"volumeSnapshotClassName": SELF, "source": {"persistentVolumeClaimName": claim}},
    })
}

/// Returns a content that exists in the storage of a driver already.
fn content(driver: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": ""},
        "spec": {
            "deletionPolicy": "Retain", "driver": driver, "source": {"snapshotHandle": "x"},
            "volumeSnapshotRef": {"name": "s", "namespace": SELF},
        },
    })
}
