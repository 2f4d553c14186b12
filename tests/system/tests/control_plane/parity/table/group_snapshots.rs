//! VolumeGroupSnapshots of claims, VolumeGroupSnapshotContents for them, and those of groups that exist already.

use serde_json::{Value, json};

use super::dynamic_contents::{readable_secret, secret, with_source_on};
use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{
    ALPHA, BETA, Compared, DRIVER, GROUP_HANDLE, MEMBER_HANDLES, SELF, Scenario, Step, Target, Until, on, parameters,
};

const BEING_CREATED: &str =
    "/metadata/annotations/groupsnapshot.storage.kubernetes.io~1volumegroupsnapshot-being-created";
const BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
const BOUND: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
const CONTENT_BOUND: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
const CREATION_FAILED: &str = "GroupSnapshotCreationFailed";
const CHECK_FAILED: &str = "GroupSnapshotContentCheckandUpdateFailed";
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// Begins a scenario with the bound claims `a` and `b`, which thin volumes on these nodes have.
fn with_claims_on(scenario: Scenario, nodes: [&str; 2]) -> Scenario {
    let label = || json!({"metadata": {"labels": {"app": "database"}}});
    let scenario =
        scenario.comparing(Compared::Snapshots).class(parameters(&json!({"topolvm.io/device-class": "thin"})));
    ["a", "b"].into_iter().zip(nodes).fold(scenario, |scenario, (claim, node)| {
        scenario.claim(claim, [on(node), label()]).wait(Kind::Claim, claim, Until::Bound)
    })
}

fn with_claims(name: &'static str) -> Scenario {
    with_claims_on(Scenario::new(name), [ALPHA; 2])
}

/// Creates a VolumeGroupSnapshotClass with the scenario's name, changed by a patch.
fn class(scenario: Scenario, patch: Value) -> Scenario {
    let class = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass", "metadata": {"name": ""},
        "driver": DRIVER, "deletionPolicy": "Delete",
    });
    scenario.create(Kind::GroupSnapshotClass, SELF, merge(class, patch))
}

/// Creates the VolumeGroupSnapshot `g` of the claims.
fn group(scenario: Scenario) -> Scenario {
    let group = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "metadata": {"name": ""},
        "spec": {
            "volumeGroupSnapshotClassName": SELF, "source": {"selector": {"matchLabels": {"app": "database"}}},
        },
    });
    scenario.create(Kind::GroupSnapshot, "g", group)
}

fn wait_content(scenario: Scenario, until: Until) -> Scenario {
    scenario.step(Step::Wait(Target::GroupContentOf("g"), until))
}

fn is_ready() -> Until {
    Until::Field("/status/readyToUse", true.into())
}

/// Waits until the group and its snapshots are ready, and records the objects.
fn ready(scenario: Scenario) -> Scenario {
    let scenario = scenario.wait(Kind::GroupSnapshot, "g", is_ready());
    let scenario = wait_content(scenario, Until::Field(BEING_CREATED, Value::Null));
    let members = ["a", "b"].into_iter().map(Target::MemberOf);
    members.fold(scenario, |scenario, member| scenario.step(Step::Wait(member, is_ready()))).record()
}

/// Waits until the snapshotter has reported the first failure to create the group and a later one, with this text.
fn refused(scenario: Scenario, text: &'static str) -> Scenario {
    wait_content(wait_content(scenario, Until::Event(CREATION_FAILED, text)), Until::Event(CHECK_FAILED, text))
}

/// Deletes the group, and waits until it, its content and its LogicalVolumes do not exist.
fn deleted(scenario: Scenario) -> Scenario {
    gone(scenario.delete(Kind::GroupSnapshot, "g"))
}

fn gone(scenario: Scenario) -> Scenario {
    let targets = [
        Target::Named(Kind::GroupSnapshot, "g".to_owned()),
        Target::GroupContentOf("g"),
        Target::GroupVolumeOf("g", 0),
        Target::GroupVolumeOf("g", 1),
    ];
    let gone = |scenario: Scenario, target| scenario.step(Step::Wait(target, Until::Gone));
    without_members(targets.into_iter().fold(scenario, gone))
}

/// Waits until snapshot-controller has deleted the VolumeSnapshots of the group, which follow it.
fn without_members(scenario: Scenario) -> Scenario {
    scenario.wait(Kind::GroupSnapshot, "g", Until::NoMembers)
}

/// Begins a scenario with the group `g` of claims on a node whose agent is stopped.
fn on_stopped(name: &'static str, node: &'static str) -> Scenario {
    let scenario = with_claims_on(Scenario::new(name).node(node, 1, 0), [node; 2]);
    let scenario = class(scenario, json!({})).step(Step::StopAgent(node));
    group(scenario).step(Step::Wait(Target::GroupVolumeOf("g", 1), Until::Exists))
}

/// Returns a content for the VolumeGroupSnapshot `p`, changed by a patch.
fn content(source: Value, patch: Value) -> Value {
    let content = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": ""},
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "source": source,
            "volumeGroupSnapshotRef": {
                "kind": "VolumeGroupSnapshot", "apiVersion": "groupsnapshot.storage.k8s.io/v1", "name": "p",
                "namespace": SELF,
            },
        },
    });
    merge(content, patch)
}

/// Returns a content that asks for snapshots of a volume that does not exist.
fn dynamic_content(patch: Value) -> Value {
    let bound = json!({"spec": {
        "volumeGroupSnapshotClassName": SELF, "volumeGroupSnapshotRef": {"uid": "5f5b1b9e-6a1d-4c6e-9f0e-000000000002"},
    }});
    content(json!({"volumeHandles": ["missing"]}), merge(bound, patch))
}

/// Returns a content of a group that exists already.
fn existing_content(group: &str, members: &[&str], patch: Value) -> Value {
    let handles = json!({"volumeGroupSnapshotHandle": group, "volumeSnapshotHandles": members});
    content(json!({"groupSnapshotHandles": handles}), patch)
}

/// Returns the VolumeGroupSnapshot `p` of the content with the scenario's name.
fn pre_provisioned_group() -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot", "metadata": {"name": "p"},
        "spec": {"source": {"volumeGroupSnapshotContentName": SELF}},
    })
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let taken = |name| ready(group(class(with_claims(name), json!({}))));
    let retained = |name| ready(group(class(with_claims(name), json!({"deletionPolicy": "Retain"}))));
    let created = |name, class_patch: Value, content: Value| {
        class(Scenario::new(name).comparing(Compared::Snapshots), class_patch).create(
            Kind::GroupSnapshotContent,
            SELF,
            content,
        )
    };
    let reports = |scenario: Scenario, text: &'static str| {
        [CREATION_FAILED, CHECK_FAILED].into_iter().fold(scenario, |scenario, reason| {
            scenario.wait(Kind::GroupSnapshotContent, SELF, Until::Event(reason, text))
        })
    };
    let released = |name| {
        without_members(retained(name).delete(Kind::GroupSnapshot, "g").wait(Kind::GroupSnapshot, "g", Until::Gone))
    };
    // The snapshots of the VolumeGroupSnapshot `g` are those of `p`, too
    let pre_provisioned = |name, patch: Value| {
        retained(name)
            .create(Kind::GroupSnapshotContent, SELF, existing_content(GROUP_HANDLE, &MEMBER_HANDLES, patch))
            .wait(Kind::GroupSnapshotContent, SELF, is_ready())
    };
    let bound = |name, patch: Value| {
        pre_provisioned(name, patch)
            .create(Kind::GroupSnapshot, "p", pre_provisioned_group())
            .wait(Kind::GroupSnapshot, "p", is_ready())
            // Without them snapshot-controller does not notice the deletion
            .wait(Kind::GroupSnapshot, "p", Until::Contains("/metadata/finalizers", BOUND.into()))
            .wait(Kind::GroupSnapshotContent, SELF, Until::Contains("/metadata/finalizers", CONTENT_BOUND.into()))
            .record()
    };
    let volumes_gone = |scenario: Scenario| {
        [0, 1].into_iter().fold(scenario, |scenario, number| {
            scenario.step(Step::Wait(Target::GroupVolumeOf("g", number), Until::Gone))
        })
    };
    vec![
        deleted(taken("group-taken")),
        taken("group-source-deleted").delete(Kind::Claim, "a").gone("a"),
        deleted(taken("group-class-deleted-afterwards").delete(Kind::GroupSnapshotClass, SELF)),
        // The snapshots of a group are deleted together
        deleted(taken("group-member-deleted").step(Step::Delete(Target::MemberOf("a"))).barrier()),
        group(class(with_claims("group-parameter-of-the-driver"), parameters(&json!({"colour": "red"})))).wait(
            Kind::GroupSnapshot,
            "g",
            is_ready(),
        ),
        refused(
            group(class(
                with_claims("group-reserved-parameter"),
                parameters(&json!({"csi.storage.k8s.io/colour": "red"})),
            )),
            "reserved",
        ),
        // Retain
        released("group-retained").record(),
        wait_content(
            released("group-retained-content-deleted").step(Step::Delete(Target::GroupContentOf("g"))),
            Until::Gone,
        )
        .record(),
        deleted(
            retained("group-policy-changed-to-delete")
                .step(Step::Patch(Target::GroupContentOf("g"), json!({"spec": {"deletionPolicy": "Delete"}}))),
        ),
        // An administrator deletes only the content
        deleted(
            taken("group-content-deleted-by-hand").step(Step::Delete(Target::GroupContentOf("g"))).barrier().record(),
        ),
        // Secrets
        refused(group(class(with_claims("group-secret-missing"), secret("group-snapshotter", "missing"))), ""),
        deleted(ready(group(readable_secret(
            class(with_claims("group-secret-readable"), secret("group-snapshotter", "key")),
            "key",
        )))),
        // Refused by the driver
        deleted(refused(
            group(class(with_claims_on(Scenario::new("group-on-two-nodes"), [ALPHA, BETA]), json!({}))),
            "FailedPrecondition",
        )),
        deleted(refused(
            group(class(
                with_source_on(
                    Scenario::new("group-lvcreate-fails").node("broken-31", 1, 0),
                    "broken-31",
                    json!({"metadata": {"labels": {"app": "database"}}}),
                )
                .step(Step::BreakLvm("broken-31", "lvcreate")),
                json!({}),
            )),
            "lvcreate",
        )),
        reports(created("group-source-missing", json!({}), dynamic_content(json!({}))), "NotFound")
            .patch(Kind::GroupSnapshotContent, SELF, json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}}))
            .delete(Kind::GroupSnapshotContent, SELF)
            .wait(Kind::GroupSnapshotContent, SELF, Until::Gone),
        reports(
            created(
                "group-content-unbound",
                json!({}),
                dynamic_content(json!({"spec": {"volumeGroupSnapshotRef": {"uid": null}}})),
            ),
            "bound",
        ),
        reports(
            created(
                "group-content-without-class",
                json!({}),
                dynamic_content(json!({"spec": {"volumeGroupSnapshotClassName": null}})),
            ),
            "lass",
        ),
        reports(
            created(
                "group-content-with-missing-class",
                json!({}),
                dynamic_content(json!({"spec": {"volumeGroupSnapshotClassName": "missing"}})),
            ),
            "missing",
        ),
        // The other content shows that this one was seen
        taken("group-content-of-other-driver")
            .create(Kind::GroupSnapshotContent, SELF, dynamic_content(json!({"spec": {"driver": "other.example.com"}})))
            .barrier(),
        // Groups that exist already
        pre_provisioned("group-pre-provisioned", json!({})).record(),
        bound("group-pre-provisioned-and-bound", json!({})),
        volumes_gone(
            bound("group-pre-provisioned-deleted", json!({}))
                .delete(Kind::GroupSnapshot, "p")
                .wait(Kind::GroupSnapshot, "p", Until::Gone)
                .wait(Kind::GroupSnapshotContent, SELF, Until::Gone),
        ),
        created("group-pre-provisioned-missing", json!({}), existing_content("missing", &["missing-0"], json!({})))
            .wait(Kind::GroupSnapshotContent, SELF, Until::Event(CHECK_FAILED, "NotFound")),
        created(
            "group-get-secret-missing",
            secret("group-snapshotter-get", "missing"),
            existing_content("x", &["x-0"], json!({"spec": {"volumeGroupSnapshotClassName": SELF}})),
        )
        .wait(Kind::GroupSnapshotContent, SELF, Until::Event(CHECK_FAILED, "")),
        // The node does not answer in time
        deleted(ready(on_stopped("group-agent-back-in-time", "slow-31").step(Step::StartAgent("slow-31")))),
        deleted(ready(
            wait_content(
                on_stopped("group-agent-back-after-timeout", "slow-32"),
                Until::Event(CREATION_FAILED, DEADLINE_EXCEEDED),
            )
            .step(Step::StartAgent("slow-32")),
        )),
        gone(
            on_stopped("group-deleted-while-it-is-created", "slow-33")
                .delete(Kind::GroupSnapshot, "g")
                .step(Step::StartAgent("slow-33")),
        ),
    ]
}

/// Returns the scenarios that stop the snapshotter, which run one after the other.
pub(super) fn restarts() -> Vec<Scenario> {
    let killed = wait_content(
        on_stopped("group-killed-while-it-is-created", "slow-41"),
        Until::Field(BEING_CREATED, "yes".into()),
    );
    let killed = killed.step(Step::Kill).step(Step::StartAgent("slow-41")).step(Step::Restart);
    vec![deleted(ready(killed))]
}

/// Returns the scenarios in which the other snapshotter takes over, which run one after the other.
pub(super) fn hand_overs() -> Vec<Scenario> {
    let changed = |name, node: &'static str| {
        let begun = wait_content(on_stopped(name, node), Until::Field(BEING_CREATED, "yes".into()));
        deleted(ready(begun.step(Step::HandOver).step(Step::StartAgent(node))))
    };
    vec![changed("group-hand-over", "slow-51"), changed("group-hand-over-back", "slow-52")]
}
