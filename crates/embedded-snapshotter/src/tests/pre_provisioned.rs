use serde_json::json;
use tonic::Code;

use super::content::{dynamic_json, pre_provisioned_json};
use super::fake_driver::Call;
use super::harness::{CONTENTS, Harness, class_json, delete, secret_json};
use crate::snapshot_content::{GROUP_HANDLE, NAMES};

const FAILED: &str = "Warning SnapshotContentCheckandUpdateFailed content";

#[tokio::test(start_paused = true)]
async fn existing_snapshot_is_listed() {
    let harness = Harness::start(&[pre_provisioned_json(&[])]);
    harness.wait(1).await;
    let expected = json!({
        "snapshotHandle": "s-0", "readyToUse": true, "creationTime": 1_000_000_005, "restoreSize": 1 << 30,
    });
    assert_eq!((harness.driver.summary(), harness.status()), (vec!["list s-0".to_owned()], expected));
    assert_eq!((harness.server.count("patch", CONTENTS), harness.is_being_created()), (1, false));
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary()[1..].to_vec(), harness.exists()), (vec!["delete s-0".to_owned()], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn existing_snapshot_is_assumed_where_none_is_listed() {
    let content = pre_provisioned_json(&[]);
    let harness = Harness::start(&[]);
    harness.driver.list_nothing();
    harness.server.apply_json(content);
    harness.wait(1).await;
    let expected = json!({"snapshotHandle": "s-0", "readyToUse": true, "creationTime": 0});
    assert_eq!((harness.driver.summary(), harness.status()), (vec![], expected));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn missing_snapshot_is_reported_until_it_exists() {
    let harness = Harness::start(&[pre_provisioned_json(&[])]);
    harness.driver.set_empty(true);
    harness.wait(10).await;
    assert_eq!((harness.driver.summary().len(), harness.events()), (4, vec![FAILED.to_owned()]));
    assert!(harness.error().contains("the driver has no snapshot s-0"), "{}", harness.error());
    harness.driver.set_empty(false);
    harness.wait(60).await;
    assert_eq!((harness.error(), harness.status()["readyToUse"].clone()), (String::new(), json!(true)));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_reported_and_retried() {
    let harness = Harness::start(&[pre_provisioned_json(&[])]);
    harness.driver.fail_next(1, Code::Unavailable, "starting");
    harness.wait(5).await;
    assert_eq!((harness.driver.summary().len(), harness.events()), (2, vec![FAILED.to_owned()]));
    assert_eq!(harness.status()["readyToUse"], true);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn existing_snapshot_that_is_not_ready_is_listed_again() {
    let harness = Harness::start(&[pre_provisioned_json(&[])]);
    harness.driver.show_not_ready(2);
    harness.wait(10).await;
    assert_eq!(harness.driver.summary(), ["list s-0"; 3]);
    assert_eq!((harness.status()["readyToUse"].clone(), harness.events()), (json!(true), vec![]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn list_gets_the_secret_of_the_class() {
    let parameters = json!({
        "csi.storage.k8s.io/snapshotter-list-secret-name": "of-${volumesnapshotcontent.name}",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "web",
    });
    let content = pre_provisioned_json(&[json!({"spec": {"volumeSnapshotClassName": "listed"}})]);
    let harness = Harness::start(&[class_json("listed", &parameters), content]);
    harness.wait(1).await;
    assert_eq!(
        harness.error(),
        "cannot check the snapshot: Secret web/of-content does not exist; create it, or correct the reference to it"
    );
    harness.server.apply_json(secret_json("of-content"));
    harness.wait(60).await;
    let Call::List(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(request.secrets["password"], "hunter2");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn content_that_was_never_bound_is_deleted_with_its_snapshot() {
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    let harness = Harness::start(&[pre_provisioned_json(&[unbound])]);
    harness.wait(1).await;
    assert_eq!(harness.status()["readyToUse"], true);
    harness.server.delete(CONTENTS, "", "content");
    harness.wait(1).await;
    assert_eq!(
        (harness.driver.summary(), harness.exists()),
        (vec!["list s-0".to_owned(), "delete s-0".to_owned()], false)
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn existing_member_of_a_group_is_not_deleted_alone() {
    let harness = Harness::start(&[]);
    harness.driver.list_in_group("g-0");
    harness.server.apply_json(pre_provisioned_json(&[]));
    harness.wait(1).await;
    assert_eq!(harness.status()["volumeGroupSnapshotHandle"], "g-0");
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec!["list s-0".to_owned()], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn new_member_is_checked_with_the_secret_of_its_annotations() {
    let annotations = json!({NAMES.secret_name: "key", NAMES.secret_namespace: "web", GROUP_HANDLE: "g-1"});
    let status = json!({"snapshotHandle": "s-1", "volumeGroupSnapshotHandle": "g-1", "readyToUse": false});
    let member = json!({
        "metadata": {"annotations": annotations}, "spec": {"volumeSnapshotClassName": null}, "status": status,
    });
    let harness = Harness::start(&[dynamic_json(&[member]), secret_json("key")]);
    harness.wait(1).await;
    let Call::List(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!((request.snapshot_id.as_str(), request.secrets["password"].as_str()), ("s-1", "hunter2"));
    assert_eq!((harness.status()["readyToUse"].clone(), harness.driver.calls().len()), (json!(true), 1));
    harness.end().await;
}
