use serde_json::json;
use tokio::sync::watch;
use tonic::Code;

use super::content::dynamic_json;
use super::fake_driver::Call;
use super::harness::{CONTENTS, Harness, change, class_json, delete, secret_json};
use crate::snapshot_content::NAMES;

const CREATE: &str = "create snapshot-0abc-1def";
const FAILED: &str = "Warning SnapshotCreationFailed content";
const STILL_FAILED: &str = "Warning SnapshotContentCheckandUpdateFailed content";

#[tokio::test(start_paused = true)]
async fn snapshot_is_created_with_parameters_and_names() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    let server = harness.server.clone();
    harness.driver.during_next(move || {
        let content = server.get_json(CONTENTS, "", "content").unwrap();
        assert_eq!(content["metadata"]["annotations"][NAMES.being_created], "yes");
        assert_eq!(content.get("status"), None);
    });
    harness.wait(1).await;
    let Call::Create(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!((request.name.as_str(), request.source_volume_id.as_str()), ("snapshot-0abc-1def", "v-1"));
    assert_eq!(request.parameters["colour"], "red");
    assert_eq!(request.parameters["csi.storage.k8s.io/volumesnapshot/name"], "monday");
    assert_eq!((request.parameters.len(), request.secrets.len()), (4, 0));
    let expected = json!({
        "snapshotHandle": "id-of-snapshot-0abc-1def", "readyToUse": true, "creationTime": 1_000_000_005,
        "restoreSize": 1 << 30,
    });
    assert_eq!((harness.status(), harness.is_being_created()), (expected, false));
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.events()), (vec![CREATE.to_owned()], vec![]));
    // The annotation, the status, and the end of the annotation
    assert_eq!(harness.server.count("patch", CONTENTS), 3);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn creation_begins_when_the_driver_is_ready() {
    let (server, driver) = Harness::start(&[]).end().await;
    let (ready, driver_ready) = watch::channel(false);
    let harness = Harness::start_when(driver_ready, server, driver);
    harness.server.apply_json(dynamic_json(&[]));
    harness.wait(60).await;
    assert_eq!((harness.driver.summary(), harness.is_being_created()), (vec![], false));
    ready.send_replace(true);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.is_being_created()), (vec![CREATE.to_owned()], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn creation_gets_the_secret_of_the_annotations() {
    let annotations = json!({"metadata": {"annotations": {NAMES.secret_name: "key", NAMES.secret_namespace: "web"}}});
    let harness = Harness::start(&[dynamic_json(&[annotations])]);
    harness.wait(1).await;
    assert_eq!(
        harness.error(),
        "cannot create the snapshot: Secret web/key does not exist; create it, or correct the reference to it"
    );
    assert_eq!((harness.driver.summary(), harness.is_being_created()), (vec![], false));
    harness.server.apply_json(secret_json("key"));
    harness.wait(60).await;
    let Call::Create(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!(request.secrets["password"], "hunter2");
    assert_eq!(harness.status()["readyToUse"], true);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_that_is_not_ready_is_checked_until_it_is() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.driver.show_not_ready(3);
    harness.wait(2).await;
    assert_eq!((harness.driver.summary().len(), harness.status()["readyToUse"].clone()), (2, json!(false)));
    assert_eq!(harness.status()["snapshotHandle"], "id-of-snapshot-0abc-1def");
    assert!(!harness.is_being_created(), "the outcome is known");
    harness.wait(6).await;
    assert_eq!(
        (harness.driver.summary(), harness.status()["readyToUse"].clone()),
        (vec![CREATE.to_owned(); 4], true.into())
    );
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary().len(), harness.events()), (4, vec![]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn final_failure_is_shown_and_retried_with_pauses() {
    for code in [Code::Internal, Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition, Code::Unimplemented] {
        let harness = Harness::start(&[dynamic_json(&[])]);
        harness.driver.fail_next(3, code, "no thin pool");
        harness.wait(6).await;
        assert!(!harness.is_being_created(), "{code:?}");
        assert_eq!(harness.driver.summary().len(), 3, "retried after 1 and 2 seconds");
        assert_eq!(
            harness.error(),
            format!("still cannot create the snapshot: rpc error: code = {code:?} desc = no thin pool")
        );
        assert_eq!(harness.status()["readyToUse"], false);
        // One of the first attempt, and one of all later ones
        assert_eq!(harness.events(), [STILL_FAILED, FAILED]);
        harness.wait(5).await;
        assert_eq!((harness.driver.summary().len(), harness.error()), (4, String::new()));
        assert_eq!(harness.status()["readyToUse"], true);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn uncertain_failure_keeps_the_annotation() {
    for code in [Code::DeadlineExceeded, Code::Aborted, Code::Unavailable, Code::ResourceExhausted, Code::Cancelled] {
        let harness = Harness::start(&[dynamic_json(&[])]);
        harness.driver.fail_next(1, code, "busy");
        harness.driver.hang_next();
        harness.wait(2).await;
        assert!(harness.is_being_created(), "{code:?}");
        let name = if code == Code::Cancelled { "Canceled".to_owned() } else { format!("{code:?}") };
        assert_eq!(harness.error(), format!("cannot create the snapshot: rpc error: code = {name} desc = busy"));
        harness.wait(10).await;
        let expected = "still cannot create the snapshot: rpc error: code = DeadlineExceeded desc = the driver did not \
                        answer in time";
        assert_eq!((harness.error(), harness.is_being_created()), (expected.to_owned(), true));
        harness.wait(10).await;
        assert_eq!((harness.status()["readyToUse"].clone(), harness.is_being_created()), (json!(true), false));
        assert_eq!(harness.driver.summary(), [CREATE; 3]);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn next_process_repeats_the_same_call() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.driver.hang_next();
    harness.wait(1).await;
    assert!(harness.is_being_created());
    let (server, driver) = harness.end().await;
    let harness = Harness::start_on(server, driver);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.is_being_created()), (vec![CREATE.to_owned(); 2], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_for_the_outcome_of_the_creation() {
    // The first answer is lost, and the snapshot exists
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.driver.fail_next(1, Code::DeadlineExceeded, "busy");
    let server = harness.server.clone();
    harness.driver.during_next(move || delete(&server));
    harness.wait(5).await;
    let expected = [CREATE, CREATE, "delete id-of-snapshot-0abc-1def"];
    assert_eq!((harness.driver.summary(), harness.exists()), (expected.map(str::to_owned).to_vec(), false));
    harness.end().await;

    // There is certainly no snapshot
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.driver.fail_next(1, Code::DeadlineExceeded, "busy");
    harness.driver.fail_next(1, Code::Internal, "broken");
    let server = harness.server.clone();
    harness.driver.during_next(move || delete(&server));
    harness.wait(9).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![CREATE.to_owned(); 2], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_deleted_during_its_creation_is_deleted_at_once() {
    for not_ready in [0, 9] {
        let harness = Harness::start(&[dynamic_json(&[])]);
        harness.driver.show_not_ready(not_ready);
        let server = harness.server.clone();
        harness.driver.during_next(move || delete(&server));
        harness.wait(1).await;
        let expected = [CREATE, "delete id-of-snapshot-0abc-1def"];
        assert_eq!((harness.driver.summary(), harness.exists()), (expected.map(str::to_owned).to_vec(), false));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn content_recreated_during_the_creation_is_another_one() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    let server = harness.server.clone();
    harness.driver.during_next(move || {
        change(&server, &json!({"metadata": {"finalizers": null}}));
        server.delete(CONTENTS, "", "content");
        let other = json!({
            "metadata": {"uid": "c-2"}, "spec": {"source": {"volumeHandle": "v-2"}, "volumeSnapshotRef": {"uid": "2"}},
        });
        server.apply_json(dynamic_json(&[other]));
    });
    harness.wait(5).await;
    assert_eq!(harness.driver.summary(), [CREATE, "create snapshot-2"]);
    assert_eq!(harness.status()["snapshotHandle"], "id-of-snapshot-2");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn wrong_input_is_shown_without_a_call() {
    let of_class = |name: &str| json!({"spec": {"volumeSnapshotClassName": name}});
    for (change, expected) in [
        (of_class("missing"), "VolumeSnapshotClass missing does not exist"),
        (json!({"spec": {"volumeSnapshotClassName": null}}), "names no VolumeSnapshotClass"),
        (of_class("other"), "reserved and not known"),
        (json!({"spec": {"volumeSnapshotRef": {"uid": null}}}), "not bound"),
    ] {
        let reserved = json!({"csi.storage.k8s.io/fstype": "xfs"});
        let harness = Harness::start(&[class_json("other", &reserved), dynamic_json(&[change])]);
        harness.wait(1).await;
        assert!(harness.error().contains(expected), "{}", harness.error());
        assert_eq!((harness.driver.summary(), harness.is_being_created()), (vec![], false));
        assert!(harness.events().contains(&FAILED.to_owned()));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn class_of_another_driver_is_refused() {
    let mut class = class_json("other", &json!({}));
    class["driver"] = "ebs.example".into();
    let content = dynamic_json(&[json!({"spec": {"volumeSnapshotClassName": "other"}})]);
    let harness = Harness::start(&[class, content]);
    harness.wait(1).await;
    assert!(harness.error().contains("is for the driver ebs.example"), "{}", harness.error());
    assert_eq!(harness.driver.summary(), Vec::<String>::new());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_api_server_are_in_the_log_alone() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.server.fail_next("patch", CONTENTS, 1, 500);
    harness.wait(5).await;
    assert_eq!((harness.driver.summary(), harness.events()), (vec![CREATE.to_owned()], vec![]));
    assert_eq!(harness.status()["readyToUse"], true);
    harness.end().await;

    // The write of the status fails: the same call again
    let harness = Harness::start(&[dynamic_json(&[])]);
    let server = harness.server.clone();
    harness.driver.during_next(move || server.fail_next("patch", CONTENTS, 1, 500));
    harness.wait(5).await;
    assert_eq!((harness.driver.summary(), harness.events()), (vec![CREATE.to_owned(); 2], vec![]));
    assert_eq!((harness.error(), harness.is_being_created()), (String::new(), false));
    harness.end().await;
}
