//! VolumeSnapshots of claims, and VolumeSnapshotContents for them.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, Compared, DRIVER, SELF, Scenario, Step, Target, Until, on, parameters};

const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// Begins a scenario with a bound claim `source` that a thin volume on this node has.
pub(super) fn with_source_on(scenario: Scenario, node: &str, claim: Value) -> Scenario {
    scenario
        .comparing(Compared::Snapshots)
        .class(parameters(&json!({"topolvm.io/device-class": "thin"})))
        .claim("source", [on(node), claim])
        .wait(Kind::Claim, "source", Until::Bound)
}

pub(super) fn with_source(name: &'static str) -> Scenario {
    with_source_on(Scenario::new(name), ALPHA, json!({}))
}

/// Begins a scenario with a VolumeSnapshot `s` of a claim on a node whose agent is stopped.
pub(super) fn on_stopped(name: &'static str, node: &'static str) -> Scenario {
    with_source_on(Scenario::new(name).node(node, 1, 0), node, json!({}))
        .snapshot_class(json!({}))
        .step(Step::StopAgent(node))
        .snapshot("s", "source")
        .step(Step::Wait(Target::SnapshotVolumeOf("s"), Until::Exists))
}

/// Returns the parameters with a Secret of the scenario's namespace.
pub(super) fn secret(purpose: &str, name: &str) -> Value {
    let [name_key, namespace_key] =
        ["name", "namespace"].map(|part| format!("csi.storage.k8s.io/{purpose}-secret-{part}"));
    parameters(&json!({name_key: name, namespace_key: SELF}))
}

/// Creates a Secret that topolvm-controller and its sidecars may read.
pub(super) fn readable_secret(scenario: Scenario, name: &str) -> Scenario {
    scenario
        .create(Kind::Secret, name, secret_object())
        .create(
            Kind::Role,
            "secrets",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": ""},
                "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
            }),
        )
        .create(
            Kind::RoleBinding,
            "secrets",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": ""},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "secrets"},
                "subjects": [
                    {"kind": "ServiceAccount", "name": "topolvm-controller", "namespace": "topolvm-system"},
                ],
            }),
        )
}

pub(super) fn secret_object() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": ""}, "stringData": {"password": "x"}})
}

/// Returns a content that asks for a snapshot of a volume that does not exist.
fn content(patch: Value) -> Value {
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": ""},
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "source": {"volumeHandle": "missing"},
            "volumeSnapshotClassName": SELF,
            "volumeSnapshotRef": {
                "kind": "VolumeSnapshot", "apiVersion": "snapshot.storage.k8s.io/v1", "name": "s", "namespace": SELF,
                "uid": "5f5b1b9e-6a1d-4c6e-9f0e-000000000001",
            },
        },
    });
    merge(content, patch)
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let with_class = |name, class| with_source(name).snapshot_class(class);
    let taken = |name| with_class(name, json!({})).snapshot("s", "source").ready("s");
    let retained = |name| with_class(name, json!({"deletionPolicy": "Retain"})).snapshot("s", "source").ready("s");
    let created = |name, patch: Value| {
        Scenario::new(name).comparing(Compared::Snapshots).snapshot_class(json!({})).create(
            Kind::SnapshotContent,
            SELF,
            content(patch),
        )
    };
    let reports = |scenario: Scenario, text: &'static str| {
        ["SnapshotCreationFailed", "SnapshotContentCheckandUpdateFailed"]
            .into_iter()
            .fold(scenario, |scenario, reason| scenario.wait(Kind::SnapshotContent, SELF, Until::Event(reason, text)))
    };
    vec![
        taken("snapshot-taken").delete(Kind::Snapshot, "s").snapshot_gone("s"),
        taken("two-snapshots").snapshot("t", "source").ready("t").delete(Kind::Snapshot, "s").snapshot_gone("s"),
        taken("snapshot-recreated").delete(Kind::Snapshot, "s").snapshot_gone("s").snapshot("s2", "source").ready("s2"),
        with_source_on(Scenario::new("snapshot-of-device"), ALPHA, json!({"spec": {"volumeMode": "Block"}}))
            .snapshot_class(json!({}))
            .snapshot("s", "source")
            .ready("s"),
        taken("source-deleted")
            .delete(Kind::Claim, "source")
            .gone("source")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        taken("class-deleted-afterwards")
            .delete(Kind::SnapshotClass, SELF)
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        with_class("parameter-of-the-driver", parameters(&json!({"colour": "red"}))).snapshot("s", "source").ready("s"),
        with_class("reserved-parameter", parameters(&json!({"csi.storage.k8s.io/colour": "red"})))
            .snapshot("s", "source")
            .refused("s", "reserved"),
        // Retain
        retained("snapshot-retained").delete(Kind::Snapshot, "s").wait(Kind::Snapshot, "s", Until::Gone).record(),
        retained("retained-content-deleted")
            .delete(Kind::Snapshot, "s")
            .wait(Kind::Snapshot, "s", Until::Gone)
            .step(Step::Delete(Target::ContentOf("s")))
            .wait_content("s", Until::Gone)
            .record(),
        taken("policy-changed-to-retain")
            .step(Step::Patch(Target::ContentOf("s"), json!({"spec": {"deletionPolicy": "Retain"}})))
            .delete(Kind::Snapshot, "s")
            .wait(Kind::Snapshot, "s", Until::Gone)
            .step(Step::Delete(Target::ContentOf("s")))
            .wait_content("s", Until::Gone)
            .record(),
        retained("policy-changed-to-delete")
            .step(Step::Patch(Target::ContentOf("s"), json!({"spec": {"deletionPolicy": "Delete"}})))
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        // Contents that others change or delete
        taken("content-deleted-by-hand")
            .step(Step::Delete(Target::ContentOf("s")))
            .record()
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        taken("content-labelled")
            .step(Step::Patch(Target::ContentOf("s"), json!({"metadata": {"labels": {"app": "shop"}}})))
            .record(),
        taken("content-with-another-finalizer")
            .step(Step::Patch(
                Target::ContentOf("s"),
                json!({"metadata": {"finalizers": [
                    "example.com/keep", "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
                ]}}),
            ))
            .delete(Kind::Snapshot, "s")
            .wait_content("s", Until::Field("/metadata/finalizers", json!(["example.com/keep"])))
            .record()
            .step(Step::Patch(Target::ContentOf("s"), json!({"metadata": {"finalizers": null}})))
            .snapshot_gone("s"),
        // Secrets
        with_class("secret-missing", secret("snapshotter", "missing")).snapshot("s", "source").refused("s", ""),
        with_class("secret-forbidden", secret("snapshotter", "key"))
            .create(Kind::Secret, "key", secret_object())
            .snapshot("s", "source")
            .refused("s", ""),
        readable_secret(with_class("secret-readable", secret("snapshotter", "key")), "key")
            .snapshot("s", "source")
            .ready("s")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        readable_secret(with_class("secret-by-template", secret("snapshotter", "of-${volumesnapshot.name}")), "of-s")
            .snapshot("s", "source")
            .ready("s"),
        readable_secret(with_class("secret-deleted", secret("snapshotter", "key")), "key")
            .snapshot("s", "source")
            .ready("s")
            .delete(Kind::Secret, "key")
            .delete(Kind::Snapshot, "s")
            .wait_content("s", Until::Event("SnapshotDeleteError", ""))
            .create(Kind::Secret, "key", secret_object())
            .snapshot_gone("s"),
        // Refused by the driver
        Scenario::with_class("thick-source", json!({}))
            .comparing(Compared::Snapshots)
            .claim("source", [on(ALPHA)])
            .wait(Kind::Claim, "source", Until::Bound)
            .snapshot_class(json!({}))
            .snapshot("s", "source")
            .refused("s", "Unimplemented")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        with_source_on(Scenario::new("lvcreate-fails").node("broken-1", 1, 0), "broken-1", json!({}))
            .snapshot_class(json!({}))
            .step(Step::BreakLvm("broken-1", "lvcreate"))
            .snapshot("s", "source")
            .refused("s", "lvcreate"),
        // As snapshot-controller deletes it
        reports(created("source-missing", json!({})), "NotFound")
            .patch(Kind::SnapshotContent, SELF, json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}}))
            .delete(Kind::SnapshotContent, SELF)
            .wait(Kind::SnapshotContent, SELF, Until::Gone),
        reports(created("content-unbound", json!({"spec": {"volumeSnapshotRef": {"uid": null}}})), "bound"),
        reports(created("content-without-class", json!({"spec": {"volumeSnapshotClassName": null}})), "lass"),
        reports(
            created("content-with-missing-class", json!({"spec": {"volumeSnapshotClassName": "missing"}})),
            "missing",
        ),
        // The other content shows that this one was seen
        taken("content-of-other-driver")
            .create(Kind::SnapshotContent, SELF, content(json!({"spec": {"driver": "other.example.com"}})))
            .snapshot("t", "source")
            .ready("t"),
        with_class("content-with-class-of-other-driver", json!({"driver": "other.example.com"})).create(
            Kind::SnapshotContent,
            SELF,
            content(json!({})),
        ),
        // The node does not answer in time
        on_stopped("agent-back-in-time", "slow-1").step(Step::StartAgent("slow-1")).ready("s"),
        on_stopped("agent-back-after-timeout", "slow-2")
            .wait_content("s", Until::Event("SnapshotCreationFailed", DEADLINE_EXCEEDED))
            .step(Step::StartAgent("slow-2"))
            .ready("s")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        on_stopped("class-deleted-after-timeout", "slow-5")
            .wait_content("s", Until::Event("SnapshotCreationFailed", DEADLINE_EXCEEDED))
            .delete(Kind::SnapshotClass, SELF)
            .wait_content("s", Until::Event("SnapshotContentCheckandUpdateFailed", "lass"))
            .step(Step::StartAgent("slow-5"))
            .snapshot_class(json!({}))
            .ready("s"),
    ]
}
