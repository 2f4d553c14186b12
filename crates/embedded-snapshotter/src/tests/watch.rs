use serde_json::json;
use topolvm_testkit::api_server::Kind;
use topolvm_testkit::{ApiServer, Log};

use super::content::dynamic_json;
use super::fake_driver::FakeDriver;
use super::harness::{CONTENTS, Harness, class_json, serve_contents};

#[tokio::test(start_paused = true)]
async fn snapshotter_waits_for_the_definition_of_contents() {
    let server = ApiServer::new();
    server.serve(Kind::cluster_scoped("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses"));
    server.apply_json(class_json("fast", &json!({})));
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let harness = Harness::start_on(server, FakeDriver::default());
    harness.wait(3600).await;
    let lines = log.take();
    assert_eq!(lines.lines().filter(|line| line.contains("no snapshots are created")).count(), 1, "{lines}");
    // And one about groups, for which no definition is usual
    let of_groups = lines.lines().filter(|line| line.contains("INFO") && line.contains("VolumeGroupSnapshotContent"));
    assert_eq!((of_groups.count(), lines.lines().count()), (1, 2), "{lines}");
    serve_contents(&harness.server);
    harness.server.apply_json(dynamic_json(&[]));
    harness.wait(61).await;
    assert_eq!(harness.status()["readyToUse"], true);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn contents_of_other_drivers_cost_nothing() {
    let harness = Harness::start(&[dynamic_json(&[json!({"spec": {"driver": "ebs.example"}})])]);
    harness.wait(3600).await;
    assert_eq!((harness.driver.summary(), harness.server.count("get", CONTENTS)), (vec![], 0));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn own_failures_do_not_end_the_pause() {
    let harness = Harness::start(&[dynamic_json(&[])]);
    harness.driver.fail_next(100, tonic::Code::Internal, "broken");
    // After 0, 1, 3, 7, 15, 31 and 63 seconds
    harness.wait(64).await;
    assert_eq!(harness.driver.summary().len(), 7);
    // A user's change does
    super::harness::change(&harness.server, &json!({"spec": {"volumeSnapshotClassName": "slow"}}));
    harness.wait(1).await;
    assert!(harness.error().contains("VolumeSnapshotClass slow does not exist"), "{}", harness.error());
    harness.end().await;
}
