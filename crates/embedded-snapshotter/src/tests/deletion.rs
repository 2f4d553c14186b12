use serde_json::{Value, json};
use tonic::Code;

use super::content::dynamic_json;
use super::fake_driver::Call;
use super::harness::{CONTENTS, Harness, change, delete, secret_json};
use crate::snapshot_content::NAMES;

const DELETE: &str = "delete s-1";
const FAILED: &str = "Warning SnapshotDeleteError content";

/// A content with a snapshot.
fn made(changes: &[Value]) -> Value {
    let status = json!({"status": {
        "snapshotHandle": "s-1", "readyToUse": true, "creationTime": 1, "restoreSize": 1,
    }});
    dynamic_json(&[&[status], changes].concat())
}

#[tokio::test(start_paused = true)]
async fn snapshot_goes_with_its_content() {
    let harness = Harness::start(&[made(&[])]);
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.server.count("get", CONTENTS)), (vec![], 0));
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![DELETE.to_owned()], false));
    // The status, and the finalizer
    assert_eq!((harness.server.count("patch", CONTENTS), harness.events()), (2, vec![]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn retained_snapshot_stays() {
    let harness = Harness::start(&[made(&[json!({"spec": {"deletionPolicy": "Retain"}})])]);
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn content_deleted_by_hand_keeps_its_snapshot() {
    let harness = Harness::start(&[made(&[])]);
    harness.server.delete(CONTENTS, "", "content");
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![], true));
    // Until its VolumeSnapshot goes too
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![DELETE.to_owned()], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn failed_deletion_is_reported_and_retried() {
    let harness = Harness::start(&[made(&[])]);
    harness.driver.fail_next(2, Code::FailedPrecondition, "in use");
    harness.driver.hang_next();
    delete(&harness.server);
    harness.wait(2).await;
    assert_eq!(
        (harness.driver.summary().len(), harness.exists(), harness.events()),
        (2, true, vec![FAILED.to_owned()])
    );
    assert_eq!((harness.status()["snapshotHandle"].clone(), harness.error()), (json!("s-1"), String::new()));
    harness.wait(20).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![DELETE.to_owned(); 4], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deletion_needs_the_secret_of_the_annotations() {
    let annotations = json!({"metadata": {"annotations": {NAMES.secret_name: "key", NAMES.secret_namespace: "web"}}});
    let harness = Harness::start(&[made(&[annotations])]);
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.events()), (vec![], vec![FAILED.to_owned()]));
    harness.server.apply_json(secret_json("key"));
    harness.wait(60).await;
    let Call::Delete(request) = &harness.driver.calls()[0] else { panic!() };
    assert_eq!((request.secrets["password"].as_str(), harness.exists()), ("hunter2", false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deletion_goes_on_after_each_failed_write() {
    for failures in 1..=2 {
        let harness = Harness::start(&[made(&[])]);
        harness.server.fail_next("patch", CONTENTS, failures, 500);
        delete(&harness.server);
        harness.wait(10).await;
        assert!(!harness.exists());
        assert_eq!((harness.driver.summary().len(), harness.events()), (failures + 1, vec![]));
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_others_stay() {
    let harness = Harness::start(&[made(&[])]);
    change(&harness.server, &json!({"metadata": {"finalizers": ["a.example/x", NAMES.finalizer]}}));
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!(harness.content()["metadata"]["finalizers"], json!(["a.example/x"]));
    assert_eq!((harness.driver.summary(), harness.status()), (vec![DELETE.to_owned()], json!({})));
    harness.wait(3600).await;
    assert_eq!(harness.driver.summary().len(), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn ready_snapshot_with_the_annotation_is_deleted() {
    let annotation = json!({"metadata": {"annotations": {NAMES.being_created: "yes"}}});
    let harness = Harness::start(&[made(&[annotation])]);
    delete(&harness.server);
    harness.wait(1).await;
    assert_eq!((harness.driver.summary(), harness.exists()), (vec![DELETE.to_owned()], false));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn refused_write_is_repeated_after_a_pause() {
    for code in [403, 422] {
        let harness = Harness::start(&[made(&[])]);
        harness.server.fail_next("patch", CONTENTS, 3, code);
        delete(&harness.server);
        harness.wait(5).await;
        assert_eq!((harness.driver.summary().len(), harness.exists()), (3, true), "{code}");
        harness.wait(5).await;
        assert_eq!((harness.driver.summary().len(), harness.exists()), (4, false), "{code}");
        harness.end().await;
    }
}
