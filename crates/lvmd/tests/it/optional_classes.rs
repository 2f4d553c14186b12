//! Device classes that a machine may lack: lvmd starts without their volume group, and offers them while it is there.

use std::time::Duration;

use tonic::Code;
use topolvm_testkit::lvm::FakeLvm;

use crate::node::{GIB, Node, code, parse};

const OPTIONAL: &str = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 0}, \
                        {name: late, volume-group: vg-late, spare-gb: 0, optional: true}]";

fn offered(node: &Node) -> Vec<String> {
    node.engine.capacity().classes.into_iter().map(|class| class.name).collect()
}

async fn start() -> Node {
    Node::start_with(FakeLvm::new().with_group("vg-ssd", 10 * GIB), OPTIONAL).await
}

#[tokio::test(start_paused = true)]
async fn optional_class_is_offered_only_while_its_group_exists() {
    let node = start().await;
    assert_eq!(offered(&node), ["ssd"]);
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(code(node.create("late", "b", GIB).await), Code::FailedPrecondition);

    node.lvm.add_group("vg-late", 5 * GIB, 1);
    // LVM is asked for a group that is not there once a minute; the clock of these tests does not run
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(offered(&node), ["ssd", "late"]);
    node.create("late", "b", GIB).await.unwrap();

    node.lvm.remove_group("vg-late");
    node.notice().await;
    assert_eq!(offered(&node), ["ssd"]);
    node.create("ssd", "c", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn volume_in_a_missing_optional_group_is_not_reported_absent() {
    let node = start().await;
    let status = node.remove("late", "b").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test(start_paused = true)]
async fn optional_class_is_added_by_reload_without_its_group() {
    let node = Node::start().await;
    let others = "device-classes: [{name: ssd, volume-group: vg-ssd, spare-gb: 0}, ";
    let required = format!("{others}{{name: late, volume-group: vg-late}}]");
    node.engine.reconfigure(parse(&required)).await.unwrap_err();
    let optional = format!("{others}{{name: late, volume-group: vg-late, optional: true}}]");
    node.engine.reconfigure(parse(&optional)).await.unwrap();
    assert_eq!(offered(&node), ["ssd"]);
    // And again, with a group that is known to be missing
    node.engine.reconfigure(parse(&optional.replace("spare-gb: 0", "spare-gb: 1"))).await.unwrap();
    node.engine.reconfigure(parse(&required)).await.unwrap_err();
}
