//! Disk groups that are for some nodes: what a node with other labels, with the right ones, and with labels that are
//! not known yet adds to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use lvm::Lvm;
use lvmd_config::{Config, DiskState};
use lvmd_discovery::Discovery;
use tokio::sync::watch;
use topolvm_proto::lvmd::{Empty, NodeLabels};
use topolvm_testkit::lvm::FakeLvm;

use crate::disk_groups::Disks;
use crate::node::{GIB, Node};

const KIND: &str = "storage.example.com/kind";
/// One file for two kinds of nodes, with the same disks.
const CONFIG: &str = "
settle-time: 0
disk-groups:
  - {name: fast, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [storage.example.com/kind=fast]}
  - {name: slow, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [storage.example.com/kind=slow]}
";
const MEMBER: DiskState = DiskState::Member { has_grown: false, evacuation: None };

fn classes(node: &Node) -> Vec<String> {
    node.engine.capacity().classes.iter().map(|class| class.name.clone()).collect()
}

/// Checks that a class without its volume group is not reported as a problem.
fn assert_healthy(node: &Node) {
    assert_eq!(*node.engine.storage_problems().borrow(), [""; 0]);
    assert!(*node.engine.lvm_works().borrow());
    let report = node.engine.storage_report();
    assert!(report.problems.is_empty(), "{report:?}");
    assert!(report.groups.iter().all(|group| group.report.is_some()), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn disk_joins_the_group_of_its_node_when_labels_are_reported() {
    for (kind, other) in [("fast", "slow"), ("slow", "fast")] {
        let lvm = FakeLvm::new();
        lvm.plug("sdb", GIB);
        let mut disks = Disks::start_with(&lvm, CONFIG).await;
        disks.look().await;
        assert!(disks.refusal("sdb").contains("topolvm-node has not reported"), "{}", disks.refusal("sdb"));
        disks.node.label(&[("zone", "a")]).await;
        disks.look().await;
        let refusal = disks.refusal("sdb");
        let said = "disk group fast applies to nodes with the labels storage.example.com/kind=fast, which this node \
                    does not have";
        assert!(refusal.starts_with(said), "{refusal}");
        assert_eq!((lvm.count("vgcreate"), classes(&disks.node)), (0, vec![]));
        assert_healthy(&disks.node);

        disks.node.label(&[("zone", "a"), (KIND, kind)]).await;
        disks.look().await;
        assert_eq!(lvm.group_of_disk("sdb").as_deref(), Some(kind), "not {other}");
        assert_eq!(classes(&disks.node), [kind]);
        assert_healthy(&disks.node);
    }
}

#[tokio::test(start_paused = true)]
async fn disk_group_without_its_node_label_keeps_disks_and_gets_none() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", GIB);
    let mut disks = Disks::start_with(&lvm, CONFIG).await;
    disks.node.label(&[(KIND, "fast")]).await;
    disks.look().await;
    disks.node.create("fast", "a", GIB / 4).await.unwrap();
    let commands = lvm.commands().len();
    disks.node.label(&[]).await;
    lvm.plug("sdc", GIB);
    for _ in 0..2 {
        disks.look().await;
    }
    assert_eq!((disks.state("sdb"), lvm.group_of_disk("sdc")), (MEMBER, None));
    assert!(disks.refusal("sdc").contains("disk group fast applies to nodes with"), "{}", disks.refusal("sdc"));
    let since: Vec<_> = lvm.commands().split_off(commands);
    assert!(since.iter().all(|command| command.starts_with("pvs")), "{since:?}");
    disks.node.create("fast", "b", GIB / 4).await.unwrap();
    disks.node.remove("fast", "a").await.unwrap();
    assert_healthy(&disks.node);

    // The next lvmd knows no labels until it gets them
    let mut disks = Disks::start_with(&lvm, CONFIG).await;
    disks.look().await;
    assert_eq!((disks.state("sdb"), classes(&disks.node)), (MEMBER, vec!["fast".to_owned()]));
    assert!(disks.refusal("sdc").contains("topolvm-node has not reported"), "{}", disks.refusal("sdc"));
    disks.node.label(&[(KIND, "fast")]).await;
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdc").as_deref(), Some("fast"));
}

#[tokio::test(start_paused = true)]
async fn disk_group_grows_with_its_member_also_without_node_label() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start_with(&lvm, CONFIG).await;
    disks.node.label(&[(KIND, "fast")]).await;
    disks.look().await;
    disks.node.label(&[(KIND, "slow")]).await;
    lvm.edit_disk("sdb", |disk| disk.disk.size = 20 * GIB);
    disks.look().await;
    assert_eq!((lvm.count("pvresize"), disks.state("sdb")), (1, MEMBER));
}

#[tokio::test(start_paused = true)]
async fn a_label_that_goes_at_the_last_moment_keeps_the_disk_out() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", GIB);
    let mut disks = Disks::start_with(&lvm, CONFIG).await;
    disks.node.label(&[(KIND, "fast")]).await;
    // The second list of physical volumes is that of the last look
    let (client, looks) = (disks.node.disks.clone(), AtomicUsize::new(0));
    lvm.before("pvs", move |_| {
        if looks.fetch_add(1, Ordering::Relaxed) == 1 {
            client.clone().set_node_labels(NodeLabels::default()).now_or_never().unwrap().unwrap();
        }
    });
    disks.look().await;
    assert_eq!((lvm.count("vgcreate"), lvm.group_of_disk("sdb")), (0, None));
}

#[tokio::test(start_paused = true)]
async fn new_node_labels_trigger_a_scan_of_the_disks() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", GIB);
    let config = format!("rescan-interval: 0\n{CONFIG}");
    let node = Node::start_with(lvm.clone(), &config).await;
    let (_groups, configured) = watch::channel(Arc::new(Config::parse("f", &config).unwrap().disk_groups));
    let discovery = Discovery::new(lvm.clone(), Lvm::new(lvm.clone()), node.engine.clone(), configured);
    let mut report = discovery.report();
    node.tasks.spawn("disk groups", discovery.run(node.shutdown.clone()));
    report.wait_for(|report| !report.disks.is_empty()).await.unwrap();
    let answer = node.disks.clone().get_node_labels(Empty {}).await.unwrap().into_inner();
    assert_eq!(answer.node_labels, None);

    node.label(&[(KIND, "slow"), ("zone", "a")]).await;
    report.wait_for(|report| report.disks[0].state == MEMBER).await.unwrap();
    assert_eq!(lvm.group_of_disk("sdb").as_deref(), Some("slow"));
    let answer = node.disks.clone().get_node_labels(Empty {}).await.unwrap().into_inner();
    assert_eq!(answer.node_labels.unwrap().labels.len(), 2);

    // A label that no group asks for is none
    let looks = lvm.count("pvs");
    node.label(&[(KIND, "slow"), ("zone", "b")]).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(lvm.count("pvs"), looks);
}
