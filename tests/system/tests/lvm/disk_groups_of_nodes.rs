//! Disk groups that are for some nodes, on real disks: the disks that lvmd adds to them when it receives the labels of
//! its node.

use std::fs;

use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::{CreateLvRequest, NodeLabel, NodeLabels};

use crate::daemon::{Client, Lvmd, SOCKET};
use crate::disk_groups::{members, programs, until_members};
use crate::fixture::{run_ok, wait};
use crate::scsi_disks::{ScsiDisks, contents};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvmd_adds_disks_to_a_group_only_while_the_node_label_matches", follows_the_labels)];

/// One file for two kinds of nodes.
const CONFIG: &str = "
rescan-interval: 0
settle-time: 0
disk-groups:
  - {name: scsi, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [storage.example.com/kind=fast]}
  - {name: bulk, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [storage.example.com/kind=bulk]}
";

/// Sets the only label of the node in lvmd.
async fn set_label(client: &Client, key: &str, value: &str) {
    let labels = vec![NodeLabel { key: key.to_owned(), value: value.to_owned() }];
    DiskServiceClient::new(client.0.clone()).set_node_labels(NodeLabels { labels }).await.unwrap();
}

/// Returns the output of `lvmd disks` with these arguments.
fn lvmd_disks(arguments: &[&str]) -> String {
    let file = "/run/lvmd-disks-of-nodes.yaml";
    fs::write(file, format!("socket-name: {SOCKET}\n{CONFIG}")).unwrap();
    let lvmd = programs().join("lvmd");
    run_ok(lvmd.to_str().unwrap(), &[&["--config", file, "--log-level=error", "disks"], arguments].concat())
}

fn follows_the_labels() {
    let disks = ScsiDisks::new(1, &["scsi", "bulk"]);
    let [first, kind] = [disks.device(0), "storage.example.com/kind".to_owned()];
    let mut lvmd = Lvmd::start(CONFIG);
    lvmd.until_logged("and topolvm-node has not reported");
    let said = lvmd_disks(&[]);
    assert!(said.contains("the labels of this node are unknown"), "{said}");
    let said = lvmd_disks(&["--node-labels", "storage.example.com/kind=bulk"]);
    assert!(said.contains("is added to disk group bulk"), "{said}");
    wait(async {
        let client = lvmd.connect().await;
        set_label(&client, &kind, "none").await;
        lvmd.until_logged(
            "disk group bulk applies to nodes with the labels storage.example.com/kind=bulk, which this node does",
        );
        assert!(contents(&first).iter().all(|byte| *byte == 0), "a disk of another node was written to");
        client.free_in("scsi").await.unwrap_err();
        let health = run_lvmd_health();
        assert_eq!(health, "", "a group of other nodes is nothing that is broken");

        set_label(&client, &kind, "fast").await;
        assert_eq!(until_members(1), std::slice::from_ref(&first));
        let request = CreateLvRequest {
            name: "a".to_owned(),
            device_class: "scsi".to_owned(),
            size_bytes: 4 << 20,
            ..CreateLvRequest::default()
        };
        lvmd.until_logged("added a disk to its disk group");
        client.create_with(request.clone()).await.unwrap();

        // The label goes: the group works, and gets no other disk
        set_label(&client, "another", "").await;
        lvmd.until_logged("it keeps its disks and gets no new disks");
        ScsiDisks::plug_new();
        let second = disks.device(1);
        lvmd.until_logged(&second);
        let said = lvmd_disks(&[]);
        let line = said.lines().find(|line| line.starts_with(&second)).unwrap();
        assert!(line.contains("disk group scsi applies to nodes with the labels"), "{said}");
        assert_eq!(members("scsi"), std::slice::from_ref(&first));
        assert_eq!(members("bulk"), [""; 0]);
        assert!(contents(&second).iter().all(|byte| *byte == 0));
        client.create_with(CreateLvRequest { name: "b".to_owned(), ..request }).await.unwrap();
        client.remove("scsi", "a").await.unwrap();

        // The next lvmd waits for the labels, and then continues
        lvmd.kill();
        lvmd = Lvmd::start(CONFIG);
        lvmd.until_logged(&second);
        let client = lvmd.connect().await;
        client.remove("scsi", "b").await.unwrap();
        assert_eq!(members("scsi"), [first]);
        set_label(&client, &kind, "fast").await;
        until_members(2);
    });
}

/// Returns the output of `lvmd health`.
fn run_lvmd_health() -> String {
    let lvmd = programs().join("lvmd");
    run_ok(lvmd.to_str().unwrap(), &["--config", "/run/lvmd-disks-of-nodes.yaml", "health"])
}
