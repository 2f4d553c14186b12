//! DiskOperations over a fake API server, and an lvmd that only says that it does what it is asked for.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use topolvm_testkit::ApiServer;

use crate::disk_service::{FakeDisks, LEFT, MISSING, MOVED};
use crate::node_storage::{Agent, EVENTS, STORAGE, events, until_ready, until_said};

const OPERATIONS: &str = "diskoperations.topolvm.io";
const FINALIZER: &str = "topolvm.io/diskoperation";
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// Starts an agent that publishes the storage of its node.
async fn start(disks: &FakeDisks) -> (ApiServer, Agent) {
    let api = ApiServer::new();
    let agent = Agent::start(&api, disks.client());
    until_ready(&api, "True").await;
    (api, agent)
}

/// Creates an operation of node `n1`, as an administrator does.
fn create(api: &ApiServer, name: &str, type_: &str, disk: &str) {
    create_with(api, name, &json!({"nodeName": "n1", "type": type_, "disk": disk}));
}

fn create_with(api: &ApiServer, name: &str, spec: &Value) {
    api.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "DiskOperation", "metadata": {"name": name}, "spec": spec,
    }));
}

/// Waits until an operation has this phase, and returns it.
async fn until_phase(api: &ApiServer, name: &str, phase: &str) -> Value {
    let has_phase = |object: Option<&Value>| (object?["status"]["phase"] == phase).then(|| object.cloned()).flatten();
    api.until(OPERATIONS, "", name, has_phase).await
}

/// Waits until an operation has ended in this phase and is not held any more, and returns it.
async fn until_ended(api: &ApiServer, name: &str, phase: &str) -> Value {
    let has_ended = |object: Option<&Value>| {
        let finalizers = object?["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        (object?["status"]["phase"] == phase && finalizers == 0).then(|| object.cloned()).flatten()
    };
    api.until(OPERATIONS, "", name, has_ended).await
}

async fn until_gone(api: &ApiServer, name: &str) {
    api.until(OPERATIONS, "", name, |object| object.is_none().then_some(())).await;
}

/// Waits until the NodeStorage has nothing there.
async fn until_silent(api: &ApiServer, pointer: &str) {
    api.until(STORAGE, "", "n1", |object| object?.pointer(pointer).is_none().then_some(())).await;
}

fn reasons(api: &ApiServer) -> Vec<String> {
    events(api).into_iter().map(|(reason, _)| reason).collect()
}

fn failure(operation: &Value) -> (&str, &str) {
    let condition = &operation["status"]["conditions"][0];
    assert_eq!(condition["type"], "Failed");
    (condition["reason"].as_str().unwrap(), operation["status"]["message"].as_str().unwrap())
}

/// Returns the status of lvmd for a physical volume that is not in its volume group.
fn of_disk_that_is_gone() -> Status {
    let details = ErrorDetails::with_error_info("PV_NOT_FOUND", "lvmd.topolvm.io", HashMap::new());
    Status::with_error_details(Code::NotFound, "volume group data has no such physical volume", details)
}

#[tokio::test(start_paused = true)]
async fn evacuation_goes_on_by_its_record_over_restarts() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    let spec = json!({"nodeName": "n1", "type": "Evacuate", "disk": MOVED, "maxBytesPerSecond": 1_048_576});
    create_with(&api, "e", &spec);
    let running = until_phase(&api, "e", "Running").await;
    assert_eq!(running["metadata"]["finalizers"], json!([FINALIZER]));
    let recorded = ["diskUUID", "volumeGroup", "devicePath"].map(|field| running["status"][field].clone());
    assert_eq!(recorded, [MOVED, "data", "/dev/sdb"].map(Value::from));
    let moving = json!({"state": "moving", "remaining": "2060Mi"});
    until_said(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation", &moving).await;
    sleep(HOUR).await;
    let progress = json!({"totalBytes": "2060Mi", "completedBytes": "0", "percent": "0%"});
    assert_eq!(api.get_json(OPERATIONS, "", "e").unwrap()["status"]["progress"], progress);

    agent.stop().await;
    let agent = Agent::start(&api, disks.client());
    sleep(HOUR).await;
    assert_eq!(disks.calls(), ["evacuate data moved at 1048576"]);
    disks.empty(MOVED);
    let ended = until_ended(&api, "e", "Succeeded").await;
    assert_eq!(ended["status"]["conditions"][0]["type"], "Complete");
    assert_eq!(ended["status"]["progress"]["percent"], "100%");
    sleep(MINUTE).await;
    assert_eq!(reasons(&api), ["DiskEvacuated", "EvacuationStarted"]);

    // The disk stays as it is without the object, until another one adds it
    api.delete(OPERATIONS, "", "e");
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 1);
    create(&api, "a", "Add", MOVED);
    until_ended(&api, "a", "Succeeded").await;
    until_silent(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation").await;
    assert_eq!(disks.calls()[1..], ["stop data moved"]);
    sleep(MINUTE).await;
    assert_eq!(reasons(&api), ["DiskEvacuated", "EvacuationStarted", "EvacuationStopped"]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deletion_cancels_and_absence_alone_does_not() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    create(&api, "r", "Remove", MOVED);
    until_phase(&api, "r", "Running").await;
    // Without its finalizer it is gone at once, as with its definition
    agent.stop().await;
    api.edit(OPERATIONS, "", "r", |object| object["metadata"]["finalizers"] = json!([]));
    api.delete(OPERATIONS, "", "r");
    let agent = Agent::start(&api, disks.client());
    sleep(HOUR).await;
    let moving = json!({"state": "moving", "remaining": "2060Mi", "remove": true});
    until_said(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation", &moving).await;
    assert_eq!(disks.calls(), ["evacuate data moved and remove"]);

    create(&api, "r", "Remove", MOVED);
    until_phase(&api, "r", "Running").await;
    // A disk of the group is missing: lvmd cannot end it just now
    disks.refuse("stop", Status::failed_precondition("a disk is missing"));
    let mut changes = api.subscribe(OPERATIONS);
    api.delete(OPERATIONS, "", "r");
    sleep(HOUR).await;
    assert_eq!(api.get_json(OPERATIONS, "", "r").unwrap()["metadata"]["finalizers"], json!([FINALIZER]));
    disks.agree();
    until_gone(&api, "r").await;
    let mut last = changes.next().await;
    while last.object()["status"]["phase"] != "Canceled" {
        last = changes.next().await;
    }
    until_silent(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn removed_and_replaced_disks_are_published() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    create(&api, "left", "Remove", LEFT);
    create(&api, "missing", "Replace", MISSING);
    until_ended(&api, "missing", "Succeeded").await;
    until_phase(&api, "left", "Running").await;
    // The disk leaves while the agent is down
    agent.stop().await;
    disks.remove(LEFT);
    let agent = Agent::start(&api, disks.client());
    until_ended(&api, "left", "Succeeded").await;
    sleep(MINUTE).await;
    let published = events(&api);
    for expected in [
        ("DiskRemoved", "/dev/sdc (UUID left) of volume group data is empty and has left the group; pull it out"),
        (
            "DiskReplaced",
            "what a disk without a device (UUID missing) of volume group data had is on other disks, and the group \
             has forgotten it",
        ),
    ] {
        let expected = (expected.0.to_owned(), expected.1.to_owned());
        assert!(published.contains(&expected), "{published:?}");
    }
    let regarding = &api.list_json(EVENTS)[0]["regarding"];
    assert_eq!((&regarding["kind"], &regarding["uid"]), (&json!("Node"), &json!("u1")));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn refused_operation_fails_once_and_is_not_retried() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    disks.refuse("evacuate", Status::failed_precondition("volume x cannot be moved"));
    create(&api, "r", "Remove", MOVED);
    let failed = until_ended(&api, "r", "Failed").await;
    assert_eq!(failure(&failed), ("Refused", "volume x cannot be moved"));
    disks.agree();
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 1);
    let expected = "DiskOperation r (Remove of disk moved) has failed: volume x cannot be moved";
    assert_eq!(events(&api), [("DiskOperationFailed".to_owned(), expected.to_owned())]);

    create(&api, "present", "Replace", MOVED);
    assert_eq!(failure(&until_ended(&api, "present", "Failed").await).0, "NotMissing");
    disks.lose(MOVED);
    create(&api, "unknown", "Remove", "unknown");
    assert_eq!(failure(&until_ended(&api, "unknown", "Failed").await).0, "DiskNotFound");
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 1);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn removal_that_lvmd_has_finished_before_its_report_succeeds() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    // lvmd had accepted the first call, and its answer was lost
    disks.refuse("evacuate", of_disk_that_is_gone());
    create(&api, "r", "Remove", MOVED);
    sleep(MINUTE).await;
    assert!(!disks.calls().is_empty());
    disks.remove(MOVED);
    until_ended(&api, "r", "Succeeded").await;
    assert_eq!(reasons(&api), ["DiskRemoved"]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operation_waits_for_lvmd_and_fails_without_its_support() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    disks.refuse("evacuate", Status::unavailable("busy"));
    create(&api, "e", "Evacuate", MOVED);
    sleep(HOUR).await;
    let waiting = until_phase(&api, "e", "Pending").await;
    assert!(waiting["status"]["message"].as_str().unwrap().contains("busy"), "{waiting}");
    let tries = disks.calls().len();
    assert!((10..=25).contains(&tries), "{tries}");
    assert_eq!(reasons(&api), Vec::<String>::new());
    disks.refuse("evacuate", Status::unimplemented("unknown service"));
    assert_eq!(failure(&until_ended(&api, "e", "Failed").await).0, "Unsupported");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn refused_addition_never_means_another_disk() {
    let disks = FakeDisks::new();
    disks.plug("/dev/sde", "/dev/disk/by-id/ata-E");
    disks.plug("/dev/vdb", "");
    let (api, agent) = start(&disks).await;
    disks.refuse("add /dev/vdb", Status::failed_precondition("no disk group selects it"));
    create(&api, "e", "Add", "ata-E");
    create(&api, "vdb", "Add", "/dev/vdb");
    create(&api, "vdx", "Add", "/dev/vdx");
    until_ended(&api, "e", "Succeeded").await;
    assert_eq!(failure(&until_ended(&api, "vdb", "Failed").await), ("Refused", "no disk group selects it"));
    assert_eq!(failure(&until_ended(&api, "vdx", "Failed").await).0, "DiskNotFound");
    assert_eq!(disks.calls(), ["add /dev/sde /dev/disk/by-id/ata-E", "add /dev/vdb"]);
    disks.agree();
    disks.plug("/dev/vdx", "");
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 2);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn answer_that_cannot_be_written_is_not_asked_for_again() {
    let disks = FakeDisks::new();
    disks.plug("/dev/vdb", "");
    let (api, agent) = start(&disks).await;
    disks.refuse("add", Status::failed_precondition("no disk group selects it"));
    api.fail_next("patch", OPERATIONS, 4, 403);
    create(&api, "vdb", "Add", "/dev/vdb");
    until_ended(&api, "vdb", "Failed").await;
    assert_eq!(disks.calls(), ["add /dev/vdb"]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn second_operation_of_a_disk_fails() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    create(&api, "first", "Evacuate", MOVED);
    until_phase(&api, "first", "Running").await;
    create(&api, "second", "Remove", MOVED);
    let failed = until_ended(&api, "second", "Failed").await;
    let (reason, message) = failure(&failed);
    assert_eq!(reason, "Conflict");
    assert!(message.contains("DiskOperation first (Evacuate)"), "{message}");
    disks.empty(MOVED);
    until_ended(&api, "first", "Succeeded").await;
    create(&api, "third", "Remove", MOVED);
    until_phase(&api, "third", "Running").await;
    assert_eq!(disks.calls(), ["evacuate data moved", "evacuate data moved and remove"]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finished_operation_is_deleted_after_its_ttl() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    let spec = |ttl: i32| {
        json!({
            "nodeName": "n1", "type": "Add", "disk": MOVED, "ttlSecondsAfterFinished": ttl,
        })
    };
    create_with(&api, "kept", &spec(60));
    until_ended(&api, "kept", "Succeeded").await;
    create_with(&api, "at-once", &spec(0));
    until_gone(&api, "at-once").await;
    assert!(api.get_json(OPERATIONS, "", "kept").is_some());
    // The clock of the tests does not go on: the operation has ended a minute ago
    api.edit(OPERATIONS, "", "kept", |object| {
        object["status"]["completionTime"] = json!("2025-12-31T23:59:00Z");
    });
    until_gone(&api, "kept").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn operations_of_other_nodes_are_left_alone() {
    for selectable in [&["spec.nodeName"][..], &[]] {
        let disks = FakeDisks::new();
        let api = ApiServer::new();
        api.set_selectable_fields(OPERATIONS, selectable);
        create_with(&api, "theirs", &json!({"nodeName": "n2", "type": "Remove", "disk": MOVED}));
        create(&api, "ours", "Remove", LEFT);
        let agent = Agent::start(&api, disks.client());
        until_phase(&api, "ours", "Running").await;
        sleep(HOUR).await;
        assert_eq!(disks.calls(), ["evacuate data left and remove"]);
        assert_eq!(api.get_json(OPERATIONS, "", "theirs").unwrap()["status"], Value::Null);
        agent.stop().await;
    }
}
