//! Disks: listed, found by the names that people have for them, and wished of. The agent is played by changes of its
//! object.

use serde_json::{Value, json};
use topolvm_testkit::ApiServer;

use super::rows::{in_table, rows_of};
use super::*;

const STORAGE: &str = "nodestorages.topolvm.io";

fn server() -> (ApiServer, Cluster) {
    let server = ApiServer::new();
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "NodeStorage",
        "metadata": {"name": "n1", "annotations": {"disk.topolvm.io/u-c": "remove", "example.com/x": "y"}},
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
                    "verdict": "candidate", "message": "would be added",
                },
                {"path": "/dev/sda", "size": "5Gi", "verdict": "refused", "message": "in use: sda1"},
                {
                    "path": "/dev/sdb", "stableName": "/dev/disk/by-id/ata-B", "diskGroup": "data", "model": "ST4",
                    "verdict": "member",
                },
            ],
            "diskGroups": [{"name": "data", "mode": "report"}],
            "diskWishes": [{"disk": "u-c", "wish": "remove", "state": "refused", "message": "no room"}],
        },
    }));
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

fn annotations(server: &ApiServer) -> Value {
    server.get_json(STORAGE, "", "n1").unwrap()["metadata"]["annotations"].clone()
}

/// Waits until an annotation has this value, and changes the object as the agent does then.
async fn answer(server: &ApiServer, key: &str, value: &str, change: impl FnMut(&mut Value)) {
    let wished = json!(value);
    server
        .until(STORAGE, "", "n1", |object| (object?["metadata"]["annotations"].get(key) == Some(&wished)).then_some(()))
        .await;
    server.edit(STORAGE, "", "n1", change);
}

#[tokio::test]
async fn disks_of_groups_come_first_and_each_says_what_is_done_to_it() {
    let (_server, cluster) = server();
    let storage = get(&cluster, "n1").await.unwrap();
    let rows = rows_of(cluster.flavor, &storage);
    let expected = "\
NODE   DISK       NAME    SIZE   FREE   GROUP   STATE                              REASON
n1     /dev/sdb   ata-B   10Gi   4Gi    data    member                             -
n1     /dev/sdc   -       10Gi   1Gi    data    member                             remove is refused: no room
n1     /dev/sdd   -       10Gi   1Gi    data    moving, 5Gi left, then it leaves   moves
n1     /dev/sde   -       10Gi   -      data    missing                            -
n1     /dev/sde   ata-E   20Gi   -      data    candidate                          would be added
n1     /dev/sda   -       5Gi    -      -       refused                            in use: sda1
";
    assert_eq!(in_table(&rows, false), expected);
    let json = serde_json::to_value(&rows[2]).unwrap();
    assert_eq!(
        (&json["remainingBytes"], &json["uuid"], &json["state"]),
        (&json!(5_u64 << 30), &json!("u-d"), &json!("moving"))
    );
    run_words(&cluster, &["list", "-o", "json"]).await.unwrap();
    let error = run_words(&cluster, &["list", "n2"]).await.unwrap_err();
    assert!(error.contains("there is no NodeStorage n2"), "{error}");
}

#[tokio::test]
async fn a_disk_is_found_by_each_of_its_names_and_what_is_not_there_is_answered_with_what_is() {
    let (server, cluster) = server();
    for name in ["/dev/sdb", "ata-B", "/dev/disk/by-id/ata-B", "u-b"] {
        run_words(&cluster, &["evacuate", "n1", name, "--rate=1Mi", "--no-wait"]).await.unwrap();
        assert_eq!(annotations(&server)["disk.topolvm.io/u-b"], "evacuate;bytes-per-second=1048576");
        run_words(&cluster, &["evacuate", "n1", name, "--stop", "--no-wait"]).await.unwrap();
        assert_eq!(annotations(&server)["disk.topolvm.io/u-b"], "stop");
    }
    let before = annotations(&server);
    for (words, expected) in [
        (["evacuate", "n1", "/dev/sdx"], "node n1 has no disk /dev/sdx; it has these:\nNODE   DISK"),
        (["evacuate", "n1", ""], "has no disk"),
        (["evacuate", "n1", "/dev/sda"], "/dev/sda of node n1 is in no volume group"),
        (["add", "n1", "ata-B"], "/dev/sdb (ata-B, u-b) of node n1 is in volume group data already"),
        (["replace", "n1", "u-b"], "is not missing; to have another disk in its place add that one"),
        (["remove", "n1", "u-b"], "its volumes are moved to the other disks of the group while they are in use"),
        (["replace", "n1", "/dev/sde"], "it cannot come back. It is refused while a volume without a mirror was on it"),
    ] {
        let error = run_words(&cluster, &words).await.unwrap_err();
        assert!(error.contains(expected), "{words:?}: {error}");
    }
    assert_eq!(annotations(&server), before);
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
async fn a_removal_is_waited_for_until_the_disk_has_left() {
    let (server, cluster) = server();
    let agent = answer(&server, "disk.topolvm.io/u-b", "remove", |object| {
        object["status"]["volumeGroups"][0]["physicalVolumes"].as_array_mut().unwrap().remove(0);
    });
    let (removed, ()) = tokio::join!(run_words(&cluster, &["remove", "n1", "/dev/sdb", "--yes"]), agent);
    removed.unwrap();
    assert_eq!(annotations(&server)["example.com/x"], "y");
}

#[tokio::test]
async fn a_refusal_ends_the_wait_and_says_how_the_wish_is_taken_back() {
    let (_server, cluster) = server();
    let error = run_words(&cluster, &["remove", "n1", "u-c", "--yes"]).await.unwrap_err();
    assert!(error.starts_with("it is refused: no room\n") && error.contains("evacuate n1 u-c --stop"), "{error}");
}

#[tokio::test]
async fn blank_disks_are_added_beside_others_that_are_to_be_and_by_the_name_that_stays() {
    let (server, cluster) = server();
    server.edit(STORAGE, "", "n1", |object| {
        object["metadata"]["annotations"]["topolvm.io/add-disks"] = json!("ata-Y");
    });
    // Somebody else is quicker
    server.before_next("patch", STORAGE, |server| {
        server.edit(STORAGE, "", "n1", |object| {
            object["metadata"]["annotations"]["topolvm.io/add-disks"] = json!("ata-Y,ata-Z");
        });
    });
    let agent = answer(&server, "topolvm.io/add-disks", "ata-Y,ata-Z,ata-E", |object| {
        object["metadata"]["annotations"]["topolvm.io/add-disks"] = json!("ata-Y,ata-Z");
        let told = json!({"disk": "ata-E", "wish": "add", "state": "accepted"});
        object["status"]["diskWishes"].as_array_mut().unwrap().push(told);
    });
    let (added, ()) = tokio::join!(run_words(&cluster, &["add", "n1", "/dev/sde"]), agent);
    added.unwrap();

    let agent = answer(&server, "topolvm.io/add-disks", "ata-Y,ata-Z,/dev/sda", |object| {
        object["metadata"]["annotations"]["topolvm.io/add-disks"] = json!("ata-Y,ata-Z");
        let told = json!({"disk": "/dev/sda", "wish": "add", "state": "refused", "message": "in use"});
        object["status"]["diskWishes"].as_array_mut().unwrap().push(told);
    });
    let (refused, ()) = tokio::join!(run_words(&cluster, &["add", "n1", "/dev/sda"]), agent);
    assert_eq!(refused.unwrap_err(), "the disk is not added to node n1: in use");
}

#[tokio::test]
async fn without_disk_groups_there_is_nothing_to_add_and_a_missing_right_is_named() {
    let (server, cluster) = server();
    server.fail_next("patch", STORAGE, 1, 403);
    let error = run_words(&cluster, &["evacuate", "n1", "u-b"]).await.unwrap_err();
    assert!(error.contains("you may not patch nodestorages.topolvm.io"), "{error}");
    server.edit(STORAGE, "", "n1", |object| {
        object["status"]["disks"] = json!([]);
        object["status"]["diskGroups"] = json!([]);
    });
    let error = run_words(&cluster, &["add", "n1", "/dev/sdx"]).await.unwrap_err();
    assert!(error.contains("lvmd of node n1 has no disk groups"), "{error}");
}

#[tokio::test]
async fn an_object_that_is_deleted_ends_the_wait() {
    let (server, cluster) = server();
    let wished = json!("evacuate");
    let deletion = async {
        let key = "disk.topolvm.io/u-b";
        let is_wished =
            |object: Option<&Value>| (object?["metadata"]["annotations"].get(key) == Some(&wished)).then_some(());
        server.until(STORAGE, "", "n1", is_wished).await;
        // The watch has begun when somebody asks for it
        while server.count("watch", STORAGE) == 0 {
            tokio::task::yield_now().await;
        }
        server.delete(STORAGE, "", "n1");
    };
    let (waited, ()) = tokio::join!(run_words(&cluster, &["evacuate", "n1", "u-b"]), deletion);
    let error = waited.unwrap_err();
    assert!(error.contains("an evacuation that lvmd has begun goes on"), "{error}");
}
