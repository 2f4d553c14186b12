use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::json;
use topolvm_api::ApiFlavor;
use topolvm_testkit::fixtures::{claim, logical_volume, node, storage_class};

use super::*;
use crate::minimum_allocation::MinimumAllocation;
use crate::published::NodeMeta;
use crate::reservations::Exemption;

const GIB: u64 = 1 << 30;

fn publish(capacity: &Capacity, name: &str, gib: u64) {
    let node: NodeMeta = serde_json::from_value(json!(node(name).capacity("ssd", gib).build())).unwrap();
    capacity.apply_node(&Event::Apply(node));
}

/// Node `n1` with so many GiB.
fn with_node(gib: u64) -> Capacity {
    let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
    let capacity = Capacity::new(ApiFlavor::TopoLvm, minimums, || Timestamp::UNIX_EPOCH);
    publish(&capacity, "n1", gib);
    capacity
}

fn wanted(name: &str, gib: u64) -> Wanted {
    Wanted { name: name.to_owned(), classes: "ssd".into(), bytes: gib * GIB }
}

/// Creates the object of a volume if there is room, or returns the GiB that are free for it.
fn create(capacity: &Capacity, volume: &Wanted, siblings: &[Wanted]) -> Result<(), u64> {
    capacity.admit("n1", volume, siblings).map_err(|refused| refused.free / GIB)?.created();
    let size = format!("{}Gi", volume.bytes / GIB);
    capacity.apply_volume(&Event::Apply(logical_volume(&volume.name).class("ssd").sized(&size).build()));
    Ok(())
}

fn free(capacity: &Capacity) -> u64 {
    capacity.free_bytes("n1", &"ssd".into(), &Exemption::default()).unwrap() / GIB
}

#[tokio::test(start_paused = true)]
async fn the_first_volume_of_a_pod_keeps_the_space_of_the_others() {
    let capacity = with_node(9);
    let (data, log) = (wanted("pvc-1", 3), wanted("pvc-2", 4));
    assert_eq!(create(&capacity, &data, std::slice::from_ref(&log)), Ok(()));
    assert_eq!(free(&capacity), 2);
    assert_eq!(create(&capacity, &wanted("pvc-3", 3), &[]), Err(2));
    assert_eq!(create(&capacity, &wanted("pvc-4", 2), &[]), Ok(()));
    assert_eq!(create(&capacity, &log, std::slice::from_ref(&data)), Ok(()));
    assert_eq!(free(&capacity), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_space_for_all_volumes_of_a_pod_gets_none() {
    let capacity = with_node(6);
    let refused = NotEnoughSpace { device_class: "ssd".to_owned(), wanted: 7 * GIB, free: 6 * GIB };
    assert_eq!(capacity.admit("n1", &wanted("pvc-1", 3), &[wanted("pvc-2", 4)]).unwrap_err(), refused);
    assert_eq!(free(&capacity), 6, "nothing stays reserved");
}

#[tokio::test(start_paused = true)]
async fn single_volume_above_the_published_capacity_is_admitted() {
    let capacity = with_node(2);
    assert_eq!(create(&capacity, &wanted("pvc-1", 3), &[]), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn claims_of_pods_that_can_go_elsewhere_do_not_stand_in_the_way() {
    let capacity = with_node(4);
    capacity.apply_class(&Event::Apply(storage_class("fast").device_class("ssd").build()));
    let other = claim("other").class("fast").sized("4Gi").selected_node("n1");
    capacity.apply_claim(&Event::Apply(other.build()));
    assert_eq!(free(&capacity), 0);
    assert_eq!(create(&capacity, &wanted("pvc-1", 1), &[wanted("pvc-2", 3)]), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn space_of_volumes_that_are_never_requested_is_freed() {
    let capacity = with_node(9);
    assert_eq!(create(&capacity, &wanted("pvc-1", 3), &[wanted("pvc-2", 4)]), Ok(()));
    tokio::time::sleep_until(capacity.next_release().unwrap()).await;
    assert_eq!(free(&capacity), 6);
}

#[tokio::test(start_paused = true)]
async fn node_avoidance_ends_when_the_pod_has_gone_to_another_node() {
    let capacity = with_node(6);
    let (data, log) = (wanted("pvc-1", 3), wanted("pvc-2", 4));
    let refuse = || capacity.admit("n1", &data, std::slice::from_ref(&log)).map(drop).unwrap_err();
    let bytes = || capacity.free_bytes("n1", &"ssd".into(), &Exemption::default()).unwrap();
    refuse();
    assert_eq!(bytes(), 6 * GIB, "the pod can go nowhere else");
    publish(&capacity, "n2", 7);
    refuse();
    assert_eq!(bytes(), 4 * GIB - 1);
    publish(&capacity, "n2", 6);
    assert_eq!(bytes(), 6 * GIB, "the other has no room any more");
    publish(&capacity, "n2", 7);
    refuse();
    drop(capacity.admit("n1", &wanted("pvc-3", 6), &[]).unwrap());
    capacity.admit("n2", &log, std::slice::from_ref(&data)).unwrap().created();
    assert_eq!(bytes(), 6 * GIB);
    publish(&capacity, "n2", 14);
    refuse();
    let mut gone = claim("data").build();
    gone.metadata.uid = Some("1".to_owned());
    capacity.apply_claim(&Event::Delete(gone));
    assert_eq!(bytes(), 6 * GIB, "the claim was deleted");
    refuse();
    while let Some(end) = capacity.next_release() {
        tokio::time::sleep_until(end).await;
    }
    assert_eq!(bytes(), 6 * GIB, "it cannot go there for another reason");
}

/// Free space is published by one replica, and volumes may be asked of another.
#[tokio::test(start_paused = true)]
async fn node_avoidance_also_begins_when_selected_node_is_removed() {
    let capacity = with_node(6);
    capacity.apply_class(&Event::Apply(storage_class("fast").device_class("ssd").build()));
    let bytes = || capacity.free_bytes("n1", &"ssd".into(), &Exemption::default()).unwrap();
    let apply = |name: &str, size: &str, node: &str| {
        let mut claim = claim(name).class("fast").sized(size).selected_node(node).build();
        claim.metadata.uid = Some(format!("uid-of-{name}"));
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        (capacity.apply_claim(&Event::Apply(claim)), namespace)
    };
    let select = |node| ["data", "log"].map(|name| apply(name, if name == "data" { "3Gi" } else { "4Gi" }, node));
    let names = ["data", "log"].map(str::to_owned);
    let give_back = || {
        select("n1");
        for (node, namespace) in select("") {
            capacity.avoid(&node.expect("the claim had a node"), &namespace, &names);
        }
    };
    give_back();
    assert_eq!(bytes(), 6 * GIB, "the pod can go nowhere else");
    publish(&capacity, "n2", 7);
    give_back();
    assert_eq!(bytes(), 4 * GIB - 1);
    let made = logical_volume("pvc-uid-of-data").on("n2").class("ssd").build();
    capacity.apply_volume(&Event::Apply(made.clone()));
    assert_eq!(bytes(), 6 * GIB);
    capacity.apply_volume(&Event::Delete(made));
    publish(&capacity, "n1", 7);
    publish(&capacity, "n2", 14);
    give_back();
    assert_eq!(bytes(), 7 * GIB, "there is room for both by now");
    publish(&capacity, "n1", 2);
    select("n1");
    for (node, namespace) in select("") {
        capacity.avoid(&node.expect("the claim had a node"), &namespace, &names[..1]);
    }
    assert_eq!(bytes(), 2 * GIB, "a pod with one claim is compared by kube-scheduler itself");
}
