//! The labels of the Node that the agent sends to lvmd: when it connects, when they change, and when lvmd is back.

use std::collections::BTreeMap;
use std::time::Duration;

use lvmd_client::LvmdClient;
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;
use topolvm_testkit::ApiServer;
use topolvm_testkit::lvm::FakeLvm;

use crate::cluster::GIB;
use crate::disk_service::FakeDisks;
use crate::lvmd_process::{LvmdProcess, VG};
use crate::node_storage::{Agent, STORAGE, until_ready, until_said};

const MINUTE: Duration = Duration::from_mins(1);
/// A group of one kind of nodes.
const GROUP: &str = "
settle-time: 0
disk-groups: [{name: g, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [kind=fast]}]
";

fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn node_labels_are_sent_at_first_and_on_changes_only() {
    let (api, disks) = (ApiServer::new(), FakeDisks::new());
    let agent = Agent::start(&api, disks.client());
    sleep(MINUTE).await;
    assert_eq!(disks.received_labels(), [""], "an empty set of labels is sent, too");
    agent.label(Some(labels(&[("kind", "fast"), ("zone", "a")])));
    sleep(MINUTE).await;
    // Annotations change all the time
    agent.annotate("capacity.topolvm.io/g", "1");
    sleep(MINUTE).await;
    agent.forget_node();
    sleep(MINUTE).await;
    assert_eq!(disks.received_labels(), ["", "kind=fast,zone=a"], "the labels of a missing Node are not sent");
    agent.label(Some(labels(&[("kind", "fast")])));
    sleep(MINUTE).await;
    agent.label(None);
    sleep(MINUTE).await;
    assert_eq!(disks.received_labels(), ["", "kind=fast,zone=a", "kind=fast", ""]);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_labels_call_is_retried_unless_unimplemented() {
    let (api, disks) = (ApiServer::new(), FakeDisks::new());
    disks.refuse("labels", Status::unimplemented("an older one"));
    let agent = Agent::start(&api, disks.client());
    sleep(MINUTE).await;
    agent.label(Some(labels(&[("kind", "fast")])));
    sleep(MINUTE).await;
    assert_eq!(disks.received_labels(), [""]);
    until_said(&api, "/status/volumeGroups/0/name", &json!("data")).await;
    agent.stop().await;

    disks.refuse("labels", Status::unavailable("not now"));
    let agent = Agent::start(&api, disks.client());
    sleep(MINUTE).await;
    assert!((5..30).contains(&disks.received_labels().len()), "{:?}", disks.received_labels());
    disks.agree();
    sleep(MINUTE).await;
    let count = disks.received_labels().len();
    sleep(10 * MINUTE).await;
    assert_eq!(disks.received_labels().len(), count);
    agent.stop().await;
}

/// On a real socket, because what is tested is a connection that breaks.
#[tokio::test]
async fn restarted_lvmd_gets_the_node_labels_again() {
    let (api, lvm, dir) = (ApiServer::new(), FakeLvm::new().with_group(VG, 10 * GIB), tempfile::tempdir().unwrap());
    let socket = dir.path().join("lvmd.sock");
    let client = LvmdClient::connect(&socket).unwrap();
    let agent = Agent::start(&api, client.clone());
    agent.label(Some(labels(&[("kind", "fast")])));
    for _ in 0..2 {
        let lvmd = LvmdProcess::start(&lvm, GROUP).await.listen(&socket).await;
        assert_eq!(lvmd.until_labelled().await, labels(&[("kind", "fast")]));
        lvmd.stop().await;
    }
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn disk_joins_its_group_only_while_the_node_has_the_label() {
    let (api, lvm) = (ApiServer::new(), FakeLvm::new());
    lvm.plug("sdb", GIB);
    let lvmd = LvmdProcess::start(&lvm, GROUP).await;
    lvmd.look_at_disks(&lvm, GROUP).await;
    let agent = Agent::start(&api, lvmd.client());
    until_said(&api, "/status/disks/0/state", &json!("refused")).await;
    sleep(MINUTE).await;
    let looking = lvmd.keep_looking_at_disks(&lvm, GROUP);
    until_said(&api, "/status/disks/0/reasons", &json!(["other_nodes"])).await;
    // A group without disks is nothing that is broken
    until_ready(&api, "True").await;
    let status = api.get_json(STORAGE, "", "n1").unwrap()["status"].clone();
    assert_eq!((&status["diskGroups"][0]["exists"], &status["deviceClasses"]), (&json!(false), &json!(null)));

    agent.label(Some(labels(&[("kind", "fast")])));
    until_said(&api, "/status/disks/0/state", &json!("member")).await;
    until_said(&api, "/status/deviceClasses/0/name", &json!("g")).await;
    agent.label(None);
    lvmd.until_labelled_as(&labels(&[])).await;
    lvm.plug("sdc", GIB);
    lvmd.look_at_disks(&lvm, GROUP).await;
    until_said(&api, "/status/disks/0/path", &json!("/dev/sdc")).await;
    until_said(&api, "/status/disks/0/state", &json!("refused")).await;
    until_said(&api, "/status/deviceClasses/0/name", &json!("g")).await;
    until_ready(&api, "True").await;
    assert_eq!(lvm.group_of_disk("sdc"), None);
    let added: Vec<_> = crate::node_storage::events(&api).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(added, ["DiskAdded"]);
    drop(looking);
    agent.stop().await;
}
