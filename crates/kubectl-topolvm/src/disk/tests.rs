//! Disks: listed, found by the names that people have for them, and operated on. The agent is played by changes of the
//! DiskOperations.

use serde_json::{Value, json};
use topolvm_testkit::ApiServer;

use super::rows::{in_table, rows_of};
use super::*;

const STORAGE: &str = "nodestorages.topolvm.io";
const OPERATIONS: &str = "diskoperations.topolvm.io";

/// Stores an operation of node `n1`, which its agent holds.
fn operation(server: &ApiServer, name: &str, type_: &str, disk: &str, status: &Value) {
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "DiskOperation",
        "metadata": {"name": name, "finalizers": ["topolvm.io/diskoperation"]},
        "spec": {"nodeName": "n1", "disk": disk, "type": type_}, "status": status,
    }));
}

fn server() -> (ApiServer, Cluster) {
    let server = ApiServer::new();
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "NodeStorage",
        "metadata": {"name": "n1"},
        "status": {
            "volumeGroups": [{"name": "data", "uuid": "g", "physicalVolumes": [
                {"path": "/dev/sdb", "uuid": "u-b", "size": "10Gi", "free": "4Gi", "allocatable": true},
                {"path": "/dev/sdc", "uuid": "u-c", "size": "10Gi", "free": "1Gi", "allocatable": true},
                {
                    "path": "/dev/sdd", "uuid": "u-d", "size": "10Gi", "free": "1Gi", "allocatable": false,
                    "evacuation": {"state": "moving", "message": "moves", "remaining": "5Gi", "remove": true},
                },
                {"path": "/dev/sde", "uuid": "u-e", "size": "10Gi", "missing": true, "allocatable": false},
            ]}],
            "disks": [
                {
                    "path": "/dev/sde", "stableName": "/dev/disk/by-id/ata-E", "size": "20Gi", "diskGroup": "data",
                    "state": "candidate", "message": "would be added",
                },
                {"path": "/dev/sda", "size": "5Gi", "state": "refused", "message": "in use: sda1"},
                {
                    "path": "/dev/sdb", "stableName": "/dev/disk/by-id/ata-B", "diskGroup": "data", "model": "ST4",
                    "state": "member",
                },
            ],
            "diskGroups": [{"name": "data", "mode": "report"}],
        },
    }));
    operation(&server, "failed", "Remove", "u-c", &json!({"phase": "Failed", "message": "no free space"}));
    operation(&server, "moves", "Remove", "u-d", &json!({"phase": "Running", "diskUUID": "u-d", "message": "moves"}));
    let cluster = Cluster { client: server.client(), flavor: topolvm_api::ApiFlavor::TopoLvm };
    (server, cluster)
}

fn command(words: &[&str]) -> DiskCommand {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(subcommand)]
        command: DiskCommand,
    }
    <Flags as clap::Parser>::try_parse_from([&["disk"], words].concat()).unwrap().command
}

async fn run_words(cluster: &Cluster, words: &[&str]) -> Result<(), String> {
    run(cluster, command(words)).await.map_err(|error| error.chain())
}

/// Returns the specs of the operations that commands have created.
fn created(server: &ApiServer) -> Vec<Value> {
    let operations = server.list_json(OPERATIONS).into_iter();
    let by_command = operations.filter(|operation| operation["metadata"].get("generateName").is_some());
    by_command.map(|operation| operation["spec"].clone()).collect()
}

/// Waits until a command has created an operation that has no status, and returns its name.
async fn until_created(server: &ApiServer) -> String {
    let mut changes = server.subscribe(OPERATIONS);
    loop {
        let is_new = |operation: &Value| {
            operation["metadata"].get("generateName").is_some() && operation.get("status").is_none()
        };
        if let Some(operation) = server.list_json(OPERATIONS).into_iter().find(is_new) {
            return operation["metadata"]["name"].as_str().unwrap().to_owned();
        }
        changes.next().await;
    }
}

/// Waits until an operation is created, and gives it this status as the agent does.
async fn answer(server: &ApiServer, status: Value) -> String {
    let name = until_created(server).await;
    server.edit(OPERATIONS, "", &name, |object| object["status"] = status);
    name
}

#[tokio::test]
async fn disks_of_groups_come_first_and_each_says_what_is_done_to_it() {
    let (_server, cluster) = server();
    let storage = get(&cluster, "n1").await.unwrap();
    let operations = request::list(&cluster, Some("n1")).await.unwrap();
    let rows = rows_of(&storage, &operations);
    let expected = "\
NODE   DISK       NAME    SIZE   FREE   GROUP   STATE                              REASON
n1     /dev/sdb   ata-B   10Gi   4Gi    data    member                             -
n1     /dev/sdc   -       10Gi   1Gi    data    member                             Remove has failed: no free space
n1     /dev/sdd   -       10Gi   1Gi    data    moving, 5Gi left, then it leaves   moves
n1     /dev/sde   -       10Gi   -      data    missing                            -
n1     /dev/sde   ata-E   20Gi   -      data    candidate                          would be added
n1     /dev/sda   -       5Gi    -      -       refused                            in use: sda1
";
    assert_eq!(in_table(&rows, false), expected);
    let json = serde_json::to_value(&rows[2]).unwrap();
    assert_eq!(
        (&json["remainingBytes"], &json["uuid"], &json["state"], &json["operation"], &json["operationPhase"]),
        (&json!(5_u64 << 30), &json!("u-d"), &json!("moving"), &json!("Remove"), &json!("Running"))
    );
    let wide = in_table(&rows, true);
    assert!(wide.contains("OPERATION") && wide.contains("Remove Running"), "{wide}");
    run_words(&cluster, &["list", "-o", "json"]).await.unwrap();
    let error = run_words(&cluster, &["list", "n2"]).await.unwrap_err();
    assert!(error.contains("there is no NodeStorage n2"), "{error}");
}

#[tokio::test]
async fn disk_is_found_by_each_of_its_names() {
    let (server, cluster) = server();
    for name in ["/dev/sdb", "ata-B", "/dev/disk/by-id/ata-B", "u-b"] {
        run_words(&cluster, &["evacuate", "n1", name, "--rate=1Mi", "--no-wait"]).await.unwrap();
    }
    let expected = json!({
        "nodeName": "n1", "disk": "u-b", "type": "Evacuate", "maxBytesPerSecond": "1Mi",
        "ttlSecondsAfterFinished": 604_800,
    });
    assert_eq!(created(&server), vec![expected; 4]);
    let before = created(&server);
    for (words, expected) in [
        (["evacuate", "n1", "/dev/sdx"], "node n1 has no disk /dev/sdx; it has these:\nNODE   DISK"),
        (["evacuate", "n1", ""], "has no disk"),
        (["evacuate", "n1", "/dev/sda"], "/dev/sda of node n1 is in no volume group"),
        (["add", "n1", "ata-B"], "/dev/sdb (ata-B, u-b) of node n1 is in volume group data already"),
        (["replace", "n1", "u-b"], "is not missing; to have another disk in its place add that one"),
        (["remove", "n1", "u-b"], "its volumes are moved to the other disks of the group while they are in use"),
        (["replace", "n1", "/dev/sde"], "the group forgets it: it cannot come back"),
    ] {
        let error = run_words(&cluster, &words).await.unwrap_err();
        assert!(error.contains(expected), "{words:?}: {error}");
    }
    assert_eq!(created(&server), before);
}

#[tokio::test]
async fn a_name_of_several_disks_is_refused() {
    let (server, cluster) = server();
    server.edit(STORAGE, "", "n1", |object| {
        object["status"]["volumeGroups"][0]["physicalVolumes"][0]["path"] = json!("/dev/sde");
    });
    let error = run_words(&cluster, &["evacuate", "n1", "/dev/sde"]).await.unwrap_err();
    assert!(
        error.contains("is the name of several disks") && error.contains("u-b") && error.contains("u-e"),
        "{error}"
    );
}

#[tokio::test]
async fn command_waits_for_the_end_of_its_operation() {
    let (server, cluster) = server();
    let done = json!({"phase": "Succeeded", "message": "the disk has left"});
    let agent = answer(&server, done);
    let (removed, name) = tokio::join!(run_words(&cluster, &["remove", "n1", "/dev/sdb", "--yes"]), agent);
    removed.unwrap();
    assert!(name.starts_with("n1-remove-"), "{name}");

    let agent = answer(&server, json!({"phase": "Failed", "message": "in use"}));
    let (added, _) = tokio::join!(run_words(&cluster, &["add", "n1", "/dev/sde"]), agent);
    let error = added.unwrap_err();
    assert!(error.starts_with("the disk operation on node n1 has failed: in use\n"), "{error}");
    assert_eq!(created(&server).iter().find(|spec| spec["type"] == "Add").unwrap()["disk"], "ata-E");
}

#[tokio::test]
async fn stop_deletes_the_operation_or_adds_the_disk() {
    let (server, cluster) = server();
    let agent = async {
        let is_deleted = |object: Option<&Value>| object?["metadata"].get("deletionTimestamp").map(drop);
        server.until(OPERATIONS, "", "moves", is_deleted).await;
        server.edit(OPERATIONS, "", "moves", |object| {
            object["status"]["phase"] = json!("Canceled");
            object["metadata"]["finalizers"] = json!([]);
        });
    };
    let (stopped, ()) = tokio::join!(run_words(&cluster, &["evacuate", "n1", "u-d", "--stop"]), agent);
    stopped.unwrap();
    assert_eq!(created(&server), Vec::<Value>::new());

    // LVM has an evacuation on record whose operation is gone
    let agent = answer(&server, json!({"phase": "Succeeded", "message": "gets new volumes again"}));
    let (added, name) = tokio::join!(run_words(&cluster, &["evacuate", "n1", "u-d", "--stop"]), agent);
    added.unwrap();
    assert!(name.starts_with("n1-add-"), "{name}");
    run_words(&cluster, &["evacuate", "n1", "u-b", "--stop"]).await.unwrap();
    assert_eq!(created(&server).len(), 1);
}

#[tokio::test]
async fn disk_command_names_a_missing_right_and_missing_disk_groups() {
    let (server, cluster) = server();
    server.fail_next("create", OPERATIONS, 1, 403);
    let error = run_words(&cluster, &["evacuate", "n1", "u-b"]).await.unwrap_err();
    assert!(error.contains("you may not create diskoperations.topolvm.io"), "{error}");
    server.edit(STORAGE, "", "n1", |object| {
        object["status"]["disks"] = json!([]);
        object["status"]["diskGroups"] = json!([]);
        for pv in object["status"]["volumeGroups"][0]["physicalVolumes"].as_array_mut().unwrap() {
            pv.as_object_mut().unwrap().remove("evacuation");
        }
    });
    let error = run_words(&cluster, &["add", "n1", "/dev/sdx"]).await.unwrap_err();
    assert!(error.contains("lvmd of node n1 has no disk groups"), "{error}");
}

#[tokio::test]
async fn deletion_of_the_operation_ends_the_wait() {
    let (server, cluster) = server();
    let deletion = async {
        let name = until_created(&server).await;
        // The watch has begun when it has been requested
        while server.count("watch", OPERATIONS) == 0 {
            tokio::task::yield_now().await;
        }
        server.delete(OPERATIONS, "", &name);
    };
    let (waited, ()) = tokio::join!(run_words(&cluster, &["evacuate", "n1", "u-b"]), deletion);
    assert_eq!(waited.unwrap_err(), "the disk operation on node n1 was deleted, which cancels it");
}
