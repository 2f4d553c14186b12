//! Wishes of administrators about disks: annotations of the NodeStorage over a fake API server, and an lvmd that only
//! says that it does what it is asked for.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use topolvm_testkit::ApiServer;

use crate::disk_service::{FakeDisks, LEFT, MISSING, MOVED};
use crate::node_storage::{Agent, EVENTS, STORAGE, events, until_ready, until_said};

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

/// Starts an agent whose object is there.
async fn start(disks: &FakeDisks) -> (ApiServer, Agent) {
    let api = ApiServer::new();
    let agent = Agent::start(&api, disks.client());
    until_ready(&api, "True").await;
    (api, agent)
}

/// Puts an annotation on the object, as an administrator does.
fn wish(api: &ApiServer, key: &str, value: &str) {
    api.edit(STORAGE, "", "n1", |object| object["metadata"]["annotations"][key] = json!(value));
}

fn wish_of(api: &ApiServer, uuid: &str, value: &str) {
    wish(api, &format!("disk.topolvm.io/{uuid}"), value);
}

fn annotations(api: &ApiServer) -> Value {
    let annotations = api.get_json(STORAGE, "", "n1").unwrap()["metadata"]["annotations"].take();
    annotations.as_object().filter(|all| !all.is_empty()).map_or(Value::Null, |all| json!(all))
}

/// Waits until all wishes are off the object.
async fn until_taken_off(api: &ApiServer) {
    let is_off = |object: Option<&Value>| {
        let annotations = object?.pointer("/metadata/annotations").and_then(Value::as_object);
        annotations.is_none_or(serde_json::Map::is_empty).then_some(())
    };
    api.until(STORAGE, "", "n1", is_off).await;
}

/// Waits until the object says nothing there.
async fn until_silent(api: &ApiServer, pointer: &str) {
    api.until(STORAGE, "", "n1", |object| object?.pointer(pointer).is_none().then_some(())).await;
}

fn reasons(api: &ApiServer) -> Vec<String> {
    events(api).into_iter().map(|(reason, _)| reason).collect()
}

#[tokio::test(start_paused = true)]
async fn an_evacuation_is_asked_for_once_told_and_stopped_when_that_is_wished() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    wish_of(&api, MOVED, "evacuate;bytes-per-second=1Mi");
    let accepted = json!([{
        "disk": MOVED, "wish": "evacuate;bytes-per-second=1Mi", "state": "accepted",
        "message": "/dev/sdb (UUID moved) of volume group data",
    }]);
    until_said(&api, "/status/diskWishes", &accepted).await;
    let moving = json!({"state": "moving", "remaining": "2060Mi"});
    until_said(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation", &moving).await;
    sleep(HOUR).await;
    assert_eq!(disks.calls(), ["evacuate data moved at 1048576"]);

    // A start of the agent, and another rate
    agent.stop().await;
    let agent = Agent::start(&api, disks.client());
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 1);
    wish_of(&api, MOVED, "evacuate");
    until_said(&api, "/status/diskWishes/0/wish", &json!("evacuate")).await;
    sleep(HOUR).await;
    assert_eq!(disks.calls()[1..], ["evacuate data moved"]);
    disks.empty(MOVED);
    sleep(MINUTE).await;
    assert_eq!(reasons(&api), ["DiskEvacuated", "EvacuationStarted"]);

    wish_of(&api, MOVED, "stop");
    until_taken_off(&api).await;
    until_silent(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation").await;
    assert_eq!(disks.calls()[2..], ["stop data moved"]);
    sleep(MINUTE).await;
    assert_eq!(reasons(&api), ["DiskEvacuated", "EvacuationStarted", "EvacuationStopped"]);
    until_silent(&api, "/status/diskWishes").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_made_again_without_its_wishes_stops_nothing() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    wish_of(&api, MOVED, "remove");
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;
    api.delete(STORAGE, "", "n1");
    until_ready(&api, "True").await;
    sleep(HOUR).await;
    let moving = json!({"state": "moving", "remaining": "2060Mi", "remove": true});
    until_said(&api, "/status/volumeGroups/0/physicalVolumes/0/evacuation", &moving).await;
    until_silent(&api, "/status/diskWishes").await;
    // Nor does one that somebody takes off
    wish_of(&api, MOVED, "remove");
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;
    api.edit(STORAGE, "", "n1", |object| object["metadata"]["annotations"] = json!({}));
    sleep(HOUR).await;
    assert_eq!(disks.calls(), ["evacuate data moved and remove"; 2]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_removed_or_replaced_is_told_and_its_wish_is_off() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    wish_of(&api, LEFT, "remove");
    wish_of(&api, MISSING, "replace");
    until_said(&api, "/metadata/annotations", &json!({"disk.topolvm.io/left": "remove"})).await;
    sleep(MINUTE).await;
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;
    disks.remove(LEFT);
    until_taken_off(&api).await;
    sleep(MINUTE).await;
    let told = events(&api);
    let expected = [
        ("DiskRemoved", "/dev/sdc (UUID left) of volume group data: it is empty, and has left the group"),
        (
            "DiskReplaced",
            "a disk without a device (UUID missing) of volume group data: what it had is on other disks, and the \
             group has forgotten it",
        ),
        (
            "EvacuationStarted",
            "/dev/sdc (UUID left) of volume group data: its volumes are moved to the other disks of the group; then it \
             leaves the group",
        ),
    ];
    assert_eq!(told, expected.map(|(reason, note)| (reason.to_owned(), note.to_owned())));
    let regarding = &api.list_json(EVENTS)[0]["regarding"];
    assert_eq!((&regarding["kind"], &regarding["uid"]), (&json!("Node"), &json!("u1")));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_leaves_while_the_agent_is_down_has_left() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    wish_of(&api, LEFT, "remove");
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;
    agent.stop().await;
    disks.remove(LEFT);
    let agent = Agent::start(&api, disks.client());
    until_taken_off(&api).await;
    sleep(MINUTE).await;
    assert!(reasons(&api).contains(&"DiskRemoved".to_owned()), "{:?}", events(&api));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_stands_in_the_object_is_told_once_and_is_over_when_lvmd_agrees() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    disks.refuse("evacuate", tonic::Status::resource_exhausted("the other disks have 1 GiB less than is needed"));
    wish_of(&api, MOVED, "remove");
    let refused = json!([{
        "disk": "moved", "wish": "remove", "state": "refused",
        "message": "the other disks have 1 GiB less than is needed",
    }]);
    until_said(&api, "/status/diskWishes", &refused).await;
    sleep(HOUR).await;
    let tries = disks.calls().len();
    assert!((10..=25).contains(&tries), "{tries}");
    assert_eq!(reasons(&api), ["DiskWishRefused"]);
    disks.agree();
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;

    wish_of(&api, MOVED, "vanish");
    until_said(&api, "/status/diskWishes/0/state", &json!("refused")).await;
    wish_of(&api, "unknown", "remove");
    until_said(&api, "/status/diskWishes/1/state", &json!("refused")).await;
    assert_eq!(annotations(&api), json!({"disk.topolvm.io/moved": "vanish", "disk.topolvm.io/unknown": "remove"}));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_lvmd_that_does_not_know_how_is_told_once_and_one_that_is_away_is_waited_for() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    disks.refuse("evacuate", tonic::Status::unavailable("busy"));
    wish_of(&api, MOVED, "evacuate");
    until_said(&api, "/status/diskWishes/0/state", &json!("waiting")).await;
    sleep(HOUR).await;
    assert_eq!(reasons(&api), Vec::<String>::new());
    disks.refuse("evacuate", tonic::Status::unimplemented("unknown service"));
    until_said(&api, "/status/diskWishes/0/state", &json!("refused")).await;
    sleep(HOUR).await;
    let notes: Vec<_> = events(&api).into_iter().map(|(_, note)| note).collect();
    let told = "disk moved: the wish evacuate is refused: lvmd on the node does not know how to do this; install the \
                version of topolvm-node";
    assert_eq!(notes, [told]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_disk_that_is_to_be_added_is_and_a_wish_that_was_refused_is_not_left_for_another_disk() {
    let disks = FakeDisks::new();
    disks.plug("/dev/sde", "/dev/disk/by-id/ata-E");
    disks.plug("/dev/vdb", "");
    let (api, agent) = start(&disks).await;
    disks.refuse("add /dev/vdb", tonic::Status::failed_precondition("no disk group selects it"));
    wish(&api, "topolvm.io/add-disks", "ata-E, /dev/vdb ,/dev/vdx");
    until_taken_off(&api).await;
    assert_eq!(disks.calls(), ["add /dev/sde /dev/disk/by-id/ata-E", "add /dev/vdb"]);
    let refused = |name: &str, why: &str| json!({"disk": name, "wish": "add", "state": "refused", "message": why});
    let no_disk = "the node has no such disk; kubectl topolvm disk list NODE shows those that could be added";
    let expected = json!([refused("/dev/vdb", "no disk group selects it"), refused("/dev/vdx", no_disk)]);
    sleep(MINUTE).await;
    until_said(&api, "/status/diskWishes", &expected).await;
    // Nobody has asked for this one
    disks.plug("/dev/vdx", "");
    sleep(HOUR).await;
    assert_eq!(disks.calls().len(), 2);

    disks.agree();
    wish(&api, "topolvm.io/add-disks", "/dev/vdb");
    until_taken_off(&api).await;
    sleep(MINUTE).await;
    assert_eq!(disks.calls()[2..], ["add /dev/vdb"]);
    until_said(&api, "/status/diskWishes", &json!([refused("/dev/vdx", no_disk)])).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_changes_at_the_same_time_is_not_taken_off() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    api.before_next("patch", STORAGE, |api| wish_of(api, MOVED, "evacuate"));
    wish_of(&api, MOVED, "stop");
    until_said(&api, "/status/diskWishes/0/wish", &json!("evacuate")).await;
    until_said(&api, "/status/diskWishes/0/state", &json!("accepted")).await;
    assert_eq!(annotations(&api), json!({"disk.topolvm.io/moved": "evacuate"}));
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_may_not_take_wishes_off_tries_again() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    api.clear_requests();
    // Of the status too
    api.fail_next("patch", STORAGE, 4, 403);
    wish_of(&api, MOVED, "stop");
    until_taken_off(&api).await;
    let requests = api.requests();
    let is_of_annotations = |path: &str| path.contains("/nodestorages/n1") && !path.contains("/status");
    let tries = requests.iter().filter(|(verb, path)| *verb == "patch" && is_of_annotations(path)).count();
    assert!((2..=5).contains(&tries), "{requests:?}");
    assert_eq!(disks.calls(), Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn refused_replacement_is_taken_off_and_does_not_fire_later() {
    let disks = FakeDisks::new();
    let (api, agent) = start(&disks).await;
    wish_of(&api, MOVED, "replace");
    until_taken_off(&api).await;
    sleep(MINUTE).await;
    let told = events(&api);
    assert!(
        told.iter().any(|(reason, note)| reason == "DiskWishRefused" && note.contains("the disk is there")),
        "{told:?}"
    );
    disks.lose(MOVED);
    sleep(HOUR).await;
    assert_eq!(disks.calls(), [""; 0]);
    agent.stop().await;
}
