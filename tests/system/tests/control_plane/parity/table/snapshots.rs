//! Claims whose data source is a snapshot.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, BETA, DRIVER, SELF, Scenario, Step, Target, Until, on, parameters, size};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, parameters(&json!({"topolvm.io/device-class": "thin"})));
    let with_snapshot_of = |scenario: Scenario, node: &str| {
        scenario
            .claim("source", [on(node)])
            .bound("source")
            .create(Kind::SnapshotClass, SELF, snapshot_class(DRIVER))
            .create(Kind::Snapshot, "s", snapshot("source"))
            .wait(Kind::Snapshot, "s", Until::Field("/status/readyToUse", true.into()))
    };
    let with_snapshot = |name| with_snapshot_of(class(name), ALPHA);
    let with_snapshot_on = |name, node| with_snapshot_of(class(name).node(node, 1, 0), node);
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
        with_snapshot("snapshot-smaller").claim("a", [on(ALPHA), of("s"), size("32Mi")]).failed("a", "33554432"),
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
        // The finalizer of the provisioner keeps a snapshot while a volume is made from it
        with_snapshot_on("snapshot-deleted-while-restored", "slow-13")
            .step(Step::StopAgent("slow-13"))
            .claim("a", [on("slow-13"), of("s")])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists))
            .record()
            .delete(Kind::Snapshot, "s")
            .step(Step::StartAgent("slow-13"))
            .wait(Kind::Claim, "a", Until::Bound)
            .wait(Kind::Snapshot, "s", Until::Gone)
            .record(),
        with_snapshot("snapshot-claim-deleted-after-failure")
            .claim("a", [on(BETA), of("s")])
            .unselected("a")
            .deleted("a")
            .barrier()
            .record(),
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
