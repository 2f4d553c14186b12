//! Volume groups that LVM finds and that are not this machine's: one inside a tenant's volume, one of another machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use lvm::Lvm;
use lvmd_config::Machine;
use lvmd_config::tags::InstanceId;
use lvmd_engine::Engine;
use tonic::Code;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::node::{GIB, MAKING, MANAGED, Node, SOCKET, code, parse};

const TENANTS_VOLUME: &str = "vg--ssd-0b5a2f4e--8d54--4f5c--9a0e--7d8f6f3c2b1a";
const CONFIG: &str = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 0}, \
                      {name: fast, volume-group: vg-fast, spare-gb: 0, optional: true}]";
const MACHINES: [&str; 2] = ["3d1219c7c4c5404aaa1f6d2a48adfda4", "ffffffffffffffffffffffffffffffff"];

fn two_groups() -> FakeLvm {
    FakeLvm::new().with_group("vg-ssd", 10 * GIB).with_group("vg-fast", 10 * GIB)
}

fn unfinished(making: &str) -> FakeVolume {
    FakeVolume { tags: vec![MANAGED.to_owned(), making.to_owned()], ..FakeVolume::thick(GIB) }
}

/// Returns the free bytes of the offered classes.
fn offered(engine: &Engine<FakeLvm>) -> Vec<(String, u64)> {
    engine.capacity().classes.into_iter().map(|class| (class.name, class.free_bytes)).collect()
}

fn machine(id: &str) -> Machine {
    let root = tempfile::tempdir().unwrap();
    let random = root.path().join("proc/sys/kernel/random");
    fs::create_dir_all(&random).unwrap();
    fs::create_dir_all(root.path().join("etc")).unwrap();
    fs::write(random.join("boot_id"), "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a\n").unwrap();
    fs::write(root.path().join("etc/machine-id"), id).unwrap();
    Machine::read(root.path()).unwrap()
}

/// Starts the lvmd of a machine on these disks, and lets it notice what there is.
async fn start_on(id: &str, lvm: &FakeLvm, config: &str) -> (Engine<FakeLvm>, CancellationToken) {
    let (machine, shutdown) = (machine(id), CancellationToken::new());
    let instance = InstanceId::new(Path::new(SOCKET), Some(machine.clone()));
    let lvm = Lvm::new(lvm.clone()).owned_by(Some(machine.tag().unwrap()));
    let tasks = Tasks::new(shutdown.clone());
    let engine = Engine::start(lvm, parse(config), instance, &tasks, shutdown.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    (engine, shutdown)
}

#[tokio::test(start_paused = true)]
async fn group_on_a_volume_is_no_device_class() {
    let lvm = two_groups();
    lvm.write_to_volume("vg-fast", TENANTS_VOLUME);
    let node = Node::start_with(lvm, CONFIG).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(offered(&node.engine), [("ssd".to_owned(), 10 * GIB)]);
    assert_eq!(code(node.create("fast", "a", GIB).await), Code::FailedPrecondition);
    node.create("ssd", "a", GIB).await.unwrap();
    assert!(node.lvm.volume("vg-fast", "a").is_none());
}

#[tokio::test(start_paused = true)]
async fn group_on_a_volume_is_not_cleaned_up() {
    let lvm = two_groups();
    lvm.write_to_volume("vg-fast", TENANTS_VOLUME);
    let making = unfinished(MAKING);
    lvm.add_volume("vg-fast", "unfinished", making);
    let only_ssd = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 0}]";
    let node = Node::start_with(lvm, only_ssd).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!(node.lvm.volume("vg-fast", "unfinished").is_some());
}

#[tokio::test(start_paused = true)]
async fn foreign_group_has_no_capacity_and_stops_no_other_class() {
    let lvm = two_groups();
    lvm.set_system_id("node-new");
    lvm.set_group_system_id("vg-ssd", "node-old");
    let node = Node::start_with(lvm, CONFIG).await;
    let status = node.create("ssd", "a", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("vgchange --systemid"), "{status}");
    node.create("fast", "b", GIB).await.unwrap();
    assert_eq!(offered(&node.engine), [("ssd".to_owned(), 0), ("fast".to_owned(), 9 * GIB)]);

    node.lvm.set_group_system_id("vg-ssd", "node-new");
    tokio::time::sleep(Duration::from_mins(2)).await;
    node.create("ssd", "a", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn group_is_not_changed_after_the_machine_got_another_system_id() {
    let lvm = two_groups();
    lvm.set_system_id("node-old");
    lvm.set_group_system_id("vg-ssd", "node-old");
    let node = Node::start_with(lvm, CONFIG).await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.set_system_id("node-new");
    assert_eq!(code(node.create("ssd", "b", GIB).await), Code::FailedPrecondition);
    assert_eq!(code(node.remove("ssd", "a").await), Code::FailedPrecondition);
    node.create("fast", "other", GIB).await.unwrap();
    node.remove("fast", "other").await.unwrap();
    assert!(node.lvm.volume("vg-ssd", "a").is_some() && node.lvm.volume("vg-ssd", "b").is_none());
}

#[tokio::test(start_paused = true)]
async fn exported_group_is_named_and_comes_back() {
    let lvm = two_groups();
    lvm.set_exported("vg-ssd", true);
    let node = Node::start_with(lvm, CONFIG).await;
    let status = node.create("ssd", "a", GIB).await.unwrap_err();
    assert!(status.message().contains("vgimport vg-ssd"), "{status}");
    node.lvm.set_exported("vg-ssd", false);
    tokio::time::sleep(Duration::from_mins(2)).await;
    node.create("ssd", "a", GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn group_is_tagged_once_and_left_alone_by_other_machines() {
    let lvm = two_groups();
    let tag = format!("topolvm.io/machine={}", MACHINES[0]);
    let (_engine, shutdown) = start_on(MACHINES[0], &lvm, CONFIG).await;
    assert_eq!(lvm.group_tags("vg-ssd"), std::slice::from_ref(&tag));
    shutdown.cancel();
    let (engine, shutdown) = start_on(MACHINES[0], &lvm, CONFIG).await;
    assert_eq!(lvm.group_tags("vg-ssd"), [tag]);
    assert_eq!(offered(&engine).len(), 2);
    shutdown.cancel();

    let making = unfinished(MAKING);
    lvm.add_volume("vg-ssd", "unfinished", making);
    let (engine, _shutdown) = start_on(MACHINES[1], &lvm, CONFIG).await;
    assert_eq!(offered(&engine), [("ssd".to_owned(), 0)]);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!(lvm.volume("vg-ssd", "unfinished").is_some());
}

/// After a new installation all groups of the machine are those of another one.
#[tokio::test(start_paused = true)]
async fn search_names_the_class_group_if_all_are_another_machines() {
    let lvm = two_groups();
    let (_engine, shutdown) = start_on(MACHINES[0], &lvm, CONFIG).await;
    shutdown.cancel();
    let (engine, _shutdown) = start_on(MACHINES[1], &lvm, CONFIG).await;
    for (class, vg) in [("ssd", "vg-ssd"), ("fast", "vg-fast")] {
        let error = engine.find(class, &"a".parse().unwrap()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("volume group {vg} belongs to another machine")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn unfinished_volume_of_another_machine_is_not_removed() {
    let lvm = two_groups();
    let [own, other] =
        MACHINES.map(|id| format!("topolvm.io/making={id}:0b5a2f4e8d544f5c9a0e7d8f6f3c2b1a:{SOCKET}#1.0"));
    lvm.add_volume("vg-ssd", "own", unfinished(&own));
    lvm.add_volume("vg-ssd", "other", unfinished(&other));
    let (_engine, _shutdown) = start_on(MACHINES[0], &lvm, CONFIG).await;
    tokio::time::sleep(Duration::from_mins(50)).await;
    assert!(lvm.volume("vg-ssd", "own").is_none());
    assert!(lvm.volume("vg-ssd", "other").is_some());
}
