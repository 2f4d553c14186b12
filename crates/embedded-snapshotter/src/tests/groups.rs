use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;
use topolvm_testkit::ApiServer;

use super::fake_driver::{Call, FakeDriver};
use super::group_content::{dynamic_group_json, pre_provisioned_group_json};
use super::harness::{GROUP_CONTENTS, Harness, group_class_json, secret_json, serve_contents, serve_groups};
use crate::group_snapshot::NAMES;

const CREATE: &str = "create groupsnapshot-0abc-1def";
const DELETE: &str = "delete id-of-groupsnapshot-0abc-1def";
const FAILED: &str = "Warning GroupSnapshotCreationFailed content";
const STILL_FAILED: &str = "Warning GroupSnapshotContentCheckandUpdateFailed content";
const DELETION_FAILED: &str = "Warning GroupSnapshotDeleteError content";

fn content(harness: &Harness) -> Value {
    harness.server.get_json(GROUP_CONTENTS, "", "content").unwrap()
}

fn exists(harness: &Harness) -> bool {
    harness.server.get_json(GROUP_CONTENTS, "", "content").is_some()
}

fn error(harness: &Harness) -> String {
    content(harness)["status"]["error"]["message"].as_str().unwrap_or_default().to_owned()
}

fn is_being_created(harness: &Harness) -> bool {
    content(harness)["metadata"]["annotations"].get(NAMES.being_created).is_some()
}

/// snapshot-controller deletes the content of a VolumeGroupSnapshot that is being deleted.
fn delete(server: &ApiServer) {
    let annotations = json!({"metadata": {"annotations": {NAMES.being_deleted: "yes"}}});
    server.edit(GROUP_CONTENTS, "", "content", |content| json_patch::merge(content, &annotations));
    server.delete(GROUP_CONTENTS, "", "content");
}

/// The status of a group that the driver has made.
fn made() -> Value {
    json!({"status": {
        "volumeGroupSnapshotHandle": "g-1", "readyToUse": true, "creationTime": "1970-01-01T00:00:01Z",
        "volumeSnapshotInfoList": [{"volumeHandle": "v-1", "snapshotHandle": "s-1"}],
    }})
}

#[tokio::test(start_paused = true)]
async fn group_is_created_with_parameters_and_names() {
    let harness = Harness::start(&[dynamic_group_json(&[])]);
    let server = harness.server.clone();
    harness.driver.during_next(move || {
        let content = server.get_json(GROUP_CONTENTS, "", "content").unwrap();
        assert_eq!(content["metadata"]["annotations"][NAMES.being_created], "yes");
        assert_eq!(content.get("status"), None);
    });
    harness.wait(1).await;
    let Call::CreateGroup(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!((request.name.as_str(), request.source_volume_ids.len()), ("groupsnapshot-0abc-1def", 2));
    let parameters = [
        ("colour", "red"),
        ("csi.storage.k8s.io/volumegroupsnapshot/name", "monday"),
        ("csi.storage.k8s.io/volumegroupsnapshot/namespace", "web"),
        ("csi.storage.k8s.io/volumegroupsnapshotcontent/name", "content"),
    ];
    assert_eq!(request.parameters, parameters.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let snapshot = |volume: &str| {
        json!({
            "volumeHandle": volume, "snapshotHandle": format!("of-{volume}"), "readyToUse": true,
            "creationTime": 1_000_000_005, "restoreSize": 1 << 30,
        })
    };
    let expected = json!({
        "volumeGroupSnapshotHandle": "id-of-groupsnapshot-0abc-1def", "readyToUse": true,
        "creationTime": "1970-01-01T00:00:01Z", "volumeSnapshotInfoList": [snapshot("v-1"), snapshot("v-2")],
    });
    assert_eq!((content(&harness)["status"].clone(), is_being_created(&harness)), (expected, false));
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.events()), (vec![CREATE.to_owned()], vec![]));
    // The annotation, the status, and the end of the annotation
    assert_eq!(harness.server.count("patch", GROUP_CONTENTS), 3);
    delete(&harness.server);
    harness.wait(1).await;
    let Call::DeleteGroup(request) = &harness.driver.calls()[1] else { panic!() };
    assert_eq!(
        (request.snapshot_ids.clone(), exists(&harness)),
        (vec!["of-v-1".to_owned(), "of-v-2".to_owned()], false)
    );
    assert_eq!(harness.driver.summary()[1], DELETE);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn group_failure_is_shown_and_retried_with_pauses() {
    let harness = Harness::start(&[dynamic_group_json(&[])]);
    harness.driver.fail_next(3, Code::FailedPrecondition, "two nodes");
    harness.wait(6).await;
    assert_eq!((harness.driver.summary().len(), is_being_created(&harness)), (3, false));
    assert_eq!(
        error(&harness),
        "still cannot create the group of snapshots: rpc error: code = FailedPrecondition desc = two nodes"
    );
    assert_eq!(content(&harness)["status"]["readyToUse"], false);
    assert_eq!(harness.events(), [STILL_FAILED, FAILED]);
    harness.wait(5).await;
    assert_eq!((error(&harness), content(&harness)["status"]["readyToUse"].clone()), (String::new(), json!(true)));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn group_deletion_waits_for_the_outcome_of_the_creation() {
    let harness = Harness::start(&[dynamic_group_json(&[])]);
    harness.driver.fail_next(1, Code::DeadlineExceeded, "busy");
    let server = harness.server.clone();
    harness.driver.during_next(move || delete(&server));
    harness.wait(5).await;
    let expected = [CREATE, CREATE, DELETE];
    assert_eq!((harness.driver.summary(), exists(&harness)), (expected.map(str::to_owned).to_vec(), false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn group_that_is_not_ready_is_checked_until_it_is() {
    for (content_json, call) in [(dynamic_group_json(&[]), CREATE), (pre_provisioned_group_json(&[]), "get g-0")] {
        let harness = Harness::start(&[]);
        harness.driver.show_not_ready(2);
        harness.server.apply_json(content_json);
        harness.wait(10).await;
        assert_eq!((harness.driver.summary(), harness.events()), (vec![call.to_owned(); 3], vec![]));
        assert_eq!(content(&harness)["status"]["readyToUse"], true);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn existing_group_is_read_and_deleted() {
    let harness = Harness::start(&[pre_provisioned_group_json(&[])]);
    harness.wait(1).await;
    let expected = json!({
        "volumeGroupSnapshotHandle": "g-0", "readyToUse": true, "creationTime": "1970-01-01T00:00:01Z",
    });
    assert_eq!((content(&harness)["status"].clone(), is_being_created(&harness)), (expected, false));
    let Call::GetGroup(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(request.snapshot_ids, ["s-1", "s-2"]);
    delete(&harness.server);
    harness.wait(1).await;
    let Call::DeleteGroup(request) = &harness.driver.calls()[1] else { panic!() };
    assert_eq!((request.group_snapshot_id.as_str(), request.snapshot_ids.len()), ("g-0", 2));
    assert!(!exists(&harness));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn missing_group_is_reported() {
    let harness = Harness::start(&[pre_provisioned_group_json(&[])]);
    harness.driver.fail_next(2, Code::NotFound, "no group");
    harness.wait(2).await;
    assert_eq!(
        (error(&harness), harness.events()),
        (
            "cannot check the group of snapshots: rpc error: code = NotFound desc = no group".to_owned(),
            vec![STILL_FAILED.to_owned()]
        )
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn group_check_gets_the_secret_of_the_class() {
    let parameters = json!({
        "csi.storage.k8s.io/group-snapshotter-get-secret-name": "of-${volumegroupsnapshotcontent.name}",
        "csi.storage.k8s.io/group-snapshotter-get-secret-namespace": "web",
    });
    let content = pre_provisioned_group_json(&[json!({"spec": {"volumeGroupSnapshotClassName": "read"}})]);
    let harness = Harness::start(&[group_class_json("read", &parameters), content, secret_json("of-content")]);
    harness.wait(1).await;
    let Call::GetGroup(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(request.secrets["password"], "hunter2");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn group_calls_get_the_secret_of_the_annotations() {
    let annotations = json!({"metadata": {"annotations": {NAMES.secret_name: "key", NAMES.secret_namespace: "web"}}});
    let harness = Harness::start(&[dynamic_group_json(&[annotations]), secret_json("key")]);
    harness.wait(1).await;
    delete(&harness.server);
    harness.wait(1).await;
    let [Call::CreateGroup(create), Call::DeleteGroup(delete)] = &harness.driver.calls()[..] else { panic!() };
    assert_eq!([&create.secrets["password"], &delete.secrets["password"]], ["hunter2"; 2]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn retained_group_stays() {
    let harness = Harness::start(&[dynamic_group_json(&[made(), json!({"spec": {"deletionPolicy": "Retain"}})])]);
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), exists(&harness)), (vec![], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failed_group_deletion_is_reported_and_retried() {
    let harness = Harness::start(&[dynamic_group_json(&[made()])]);
    harness.driver.fail_next(1, Code::InvalidArgument, "another member");
    delete(&harness.server);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((harness.events(), exists(&harness)), (vec![DELETION_FAILED.to_owned()], true));
    harness.wait(5).await;
    assert_eq!((harness.driver.summary(), exists(&harness)), (vec!["delete g-1".to_owned(); 2], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_group_content_is_shown_without_a_call() {
    let of_class = |name: &str| json!({"spec": {"volumeGroupSnapshotClassName": name}});
    for (change, expected) in [
        (of_class("missing"), "VolumeGroupSnapshotClass missing does not exist"),
        (json!({"spec": {"volumeGroupSnapshotClassName": null}}), "names no VolumeGroupSnapshotClass"),
        (of_class("reserved"), "reserved and not known"),
        (json!({"spec": {"volumeGroupSnapshotRef": {"uid": null}}}), "not bound to a VolumeGroupSnapshot"),
    ] {
        let reserved = group_class_json("reserved", &json!({"csi.storage.k8s.io/fstype": "xfs"}));
        let harness = Harness::start(&[reserved, dynamic_group_json(&[change])]);
        harness.wait(1).await;
        assert!(error(&harness).contains(expected), "{}", error(&harness));
        assert_eq!((harness.driver.summary(), is_being_created(&harness)), (vec![], false));
        assert!(harness.events().contains(&FAILED.to_owned()));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn group_of_another_driver_is_left_alone() {
    let harness = Harness::start(&[dynamic_group_json(&[json!({"spec": {"driver": "ebs.example"}})])]);
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.server.count("get", GROUP_CONTENTS)), (vec![], 0));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn groups_begin_when_their_definition_appears() {
    let server = ApiServer::new();
    serve_contents(&server);
    let harness = Harness::start_on(server, FakeDriver::default());
    harness.wait(3600).await;
    serve_groups(&harness.server);
    harness.server.apply_json(pre_provisioned_group_json(&[]));
    harness.wait(61).await;
    assert_eq!(content(&harness)["status"]["readyToUse"], true);
    harness.end().await;
}
