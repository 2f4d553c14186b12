use topolvm_testkit::fixtures::{logical_volume, node};

use super::*;

const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;
const GIB: u64 = 1 << 30;

/// A Node: its name, its topology label, free bytes by device class.
type Row<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, &'a str)]);

fn empty() -> Capacity {
    let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
    Capacity::new(FLAVOR, minimums, || Timestamp::UNIX_EPOCH)
}

fn node_meta(node: impl serde::Serialize) -> NodeMeta {
    serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap()
}

/// Nodes as the API server would return them.
fn nodes(list: &[Row<'_>]) -> Capacity {
    let capacity = empty();
    for (name, label, annotations) in list {
        let mut node = NodeMeta::default();
        node.metadata.name = Some((*name).to_owned());
        node.metadata.labels = label.map(|value| {
            let labels = [("kubernetes.io/os", "linux"), (FLAVOR.topology_key(), value)];
            labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        });
        let annotations =
            annotations.iter().map(|(class, free)| (FLAVOR.capacity_annotation(class), (*free).to_owned()));
        node.metadata.annotations = Some(annotations.collect());
        capacity.apply_node(&Event::Apply(node));
    }
    capacity
}

fn most_free(capacity: &Capacity, class: &str) -> Option<(String, u64)> {
    capacity.with_most_free_bytes(&class.into(), &Exemption::default()).map(|node| (node.name, node.free))
}

fn free(capacity: &Capacity, segment: &str, class: &str) -> Option<u64> {
    capacity.free_bytes(segment, &class.into(), &Exemption::default())
}

#[tokio::test]
async fn the_node_with_most_free_of_the_class_is_found() {
    let capacity = nodes(&[
        ("n1", None, &[("", "5"), ("ssd", "1")]),
        ("n2", None, &[("", "9")]),
        ("n0", None, &[("", "9"), ("ssd", "lots")]),
    ]);
    assert_eq!(most_free(&capacity, ""), Some(("n0".to_owned(), 9)));
    assert_eq!(most_free(&capacity, "ssd"), Some(("n1".to_owned(), 1)));
    assert_eq!(most_free(&capacity, "hdd"), None);
}

#[tokio::test]
async fn totals_count_missing_and_unreadable_annotations_as_nothing() {
    let capacity = nodes(&[
        ("n1", None, &[("", "5")]),
        ("n2", None, &[("ssd", "3")]),
        ("n3", None, &[("", "x")]),
        ("n4", None, &[("", "18446744073709551615")]),
    ]);
    assert_eq!(capacity.total_free_bytes(&"ssd".into()), 3);
    assert_eq!(capacity.total_free_bytes(&"".into()), u64::MAX);
    assert_eq!(capacity.total_free_bytes(&"hdd".into()), 0);
}

#[tokio::test]
async fn capacity_segment_is_the_topology_label_or_the_node_name() {
    let capacity =
        nodes(&[("n1", Some("n1"), &[("", "1")]), ("n2", Some("rack"), &[("", "2")]), ("n3", None, &[("", "3")])]);
    assert_eq!(free(&capacity, "n1", ""), Some(1));
    assert_eq!(free(&capacity, "rack", ""), Some(2));
    assert_eq!(free(&capacity, "n2", ""), None);
    assert_eq!(free(&capacity, "n3", ""), Some(3));
    assert_eq!(free(&capacity, "n4", ""), None);
    assert_eq!(free(&capacity, "n1", "ssd"), None);
    let mut segments = capacity.segments();
    segments.sort();
    assert_eq!(segments, ["n1", "rack"]);
}

#[tokio::test(start_paused = true)]
async fn free_space_excludes_reservations_and_is_never_negative() {
    let capacity = empty();
    capacity.apply_node(&Event::Apply(node_meta(node("n1").capacity("ssd", 3).build())));
    let reserve = |name: &str| Event::Apply(logical_volume(name).class("ssd").sized("2Gi").build());
    capacity.apply_volume(&reserve("pvc-1"));
    assert_eq!(free(&capacity, "n1", "ssd"), Some(GIB));
    assert_eq!(capacity.free_bytes("n1", &"ssd".into(), &capacity.exempt_volume("pvc-1")), Some(3 * GIB));
    capacity.apply_volume(&reserve("pvc-2"));
    assert_eq!((free(&capacity, "n1", "ssd"), capacity.total_free_bytes(&"ssd".into())), (Some(0), 0));
    assert_eq!(capacity.reserved_bytes("n1", &"ssd".into(), &Exemption::default()), 4 * GIB);
}

/// A node publishes its default class twice, and not under which name it is there a second time.
#[tokio::test(start_paused = true)]
async fn reservation_in_the_default_class_counts_in_its_named_class() {
    let capacity = empty();
    let of_node = node("n1").capacity("", 9).capacity("ssd", 9).capacity("hdd", 5);
    capacity.apply_node(&Event::Apply(node_meta(of_node.build())));
    capacity.apply_volume(&Event::Apply(logical_volume("pvc-1").sized("2Gi").build()));
    capacity.apply_volume(&Event::Apply(logical_volume("pvc-2").class("ssd").sized("1Gi").build()));
    let free = ["", "ssd", "hdd"].map(|class| free(&capacity, "n1", class).map(|bytes| bytes / GIB));
    assert_eq!(free, [Some(6), Some(6), Some(5)]);
}

#[tokio::test(start_paused = true)]
async fn volume_stays_reserved_until_its_node_publishes_the_capacity() {
    let capacity = empty();
    let publish = |gib| capacity.apply_node(&Event::Apply(node_meta(node("n1").capacity("ssd", gib).build())));
    let volume = logical_volume("pvc-1").class("ssd").sized("2Gi");
    publish(9);
    capacity.apply_volume(&Event::Apply(volume.clone().build()));
    capacity.apply_volume(&Event::Apply(volume.ready("u", "2Gi").build()));
    assert_eq!(free(&capacity, "n1", "ssd"), Some(7 * GIB));
    publish(7);
    assert_eq!(free(&capacity, "n1", "ssd"), Some(7 * GIB));
    assert_eq!(capacity.next_release(), None);
}

#[tokio::test(start_paused = true)]
async fn an_expired_reservation_is_seen_by_who_asks_later() {
    let capacity = empty();
    capacity.apply_node(&Event::Apply(node_meta(node("n1").capacity("ssd", 9).build())));
    let volume = logical_volume("pvc-1").class("ssd").sized("2Gi");
    capacity.apply_volume(&Event::Apply(volume.clone().build()));
    capacity.apply_volume(&Event::Apply(volume.ready("u", "2Gi").build()));
    tokio::time::sleep_until(capacity.next_release().unwrap()).await;
    assert_eq!(free(&capacity, "n1", "ssd"), Some(9 * GIB));
}

#[tokio::test(start_paused = true)]
async fn a_hold_reserves_until_it_is_dropped_or_the_object_is_there() {
    let capacity = empty();
    capacity.apply_node(&Event::Apply(node_meta(node("n1").capacity("ssd", 9).build())));
    let hold = || capacity.hold("pvc-1", "n1", "ssd".into(), 2 * GIB);
    let held = hold();
    assert_eq!(free(&capacity, "n1", "ssd"), Some(7 * GIB));
    drop(held);
    assert_eq!(free(&capacity, "n1", "ssd"), Some(9 * GIB));
    hold().created();
    assert_eq!(free(&capacity, "n1", "ssd"), Some(7 * GIB));
    capacity.apply_volume(&Event::Apply(logical_volume("pvc-1").class("ssd").sized("2Gi").build()));
    assert_eq!((free(&capacity, "n1", "ssd"), capacity.next_release()), (Some(7 * GIB), None));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_notified_of_changes_only() {
    let capacity = empty();
    let mut changes = capacity.changes();
    let of_node = || Event::Apply(node_meta(node("n1").capacity("ssd", 9).build()));
    capacity.apply_node(&of_node());
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    capacity.apply_node(&of_node());
    capacity.apply_volume(&Event::Apply(logical_volume("pvc-1").failed(8, "full").build()));
    assert!(!changes.has_changed().unwrap());
    capacity.apply_volume(&Event::Apply(logical_volume("pvc-1").build()));
    assert!(changes.has_changed().unwrap());
}

/// A node with 20 GiB, of which a volume with two copies can have 10.
fn with_copies() -> Capacity {
    let capacity = empty();
    let of_node = node("n1").capacity("", 20).capacity("ssd", 20).copies("ssd", "mirrored", 10, 2);
    capacity.apply_node(&Event::Apply(node_meta(of_node.build())));
    capacity
}

/// Free GiB of the default class, and of `ssd` without an option class, with `mirrored` and with one that is not known.
fn free_by_layout(capacity: &Capacity) -> [u64; 4] {
    let classes = [("", ""), ("ssd", ""), ("ssd", "mirrored"), ("ssd", "other")];
    classes.map(|(device_class, option_class)| {
        let classes = VolumeClasses::new(device_class, option_class);
        capacity.free_bytes("n1", &classes, &Exemption::default()).unwrap() / GIB
    })
}

#[tokio::test(start_paused = true)]
async fn reservation_subtracts_all_its_copies_from_other_layouts() {
    let capacity = with_copies();
    assert_eq!(free_by_layout(&capacity), [20, 20, 10, 20]);
    let reserve = |name: &str, option_class: &str| {
        Event::Apply(logical_volume(name).class("ssd").option_class(option_class).sized("3Gi").build())
    };
    capacity.apply_volume(&reserve("pvc-1", "mirrored"));
    assert_eq!(free_by_layout(&capacity), [14, 14, 7, 14]);
    assert_eq!(capacity.reserved_bytes("n1", &"ssd".into(), &Exemption::default()), 6 * GIB);
    assert_eq!(capacity.reserved_bytes("n1", &"ssd".into(), &capacity.exempt_volume("pvc-1")), 0);
    capacity.apply_volume(&reserve("pvc-2", ""));
    assert_eq!(free_by_layout(&capacity), [11, 11, 4, 11]);
    // Until the watch reports it, a creation counts in the same way
    let held = capacity.hold("pvc-3", "n1", VolumeClasses::new("ssd", "mirrored"), GIB);
    assert_eq!(free_by_layout(&capacity), [9, 9, 3, 9]);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn volumes_that_come_together_take_from_each_other() {
    let capacity = with_copies();
    let mirrored = VolumeClasses::new("ssd", "mirrored");
    let volume = |name: &str, classes, gib| Wanted { name: name.to_owned(), classes, bytes: gib * GIB };
    let linear = volume("pvc-1", "ssd".into(), 5);
    let refused =
        capacity.admit("n1", &linear, &[volume("pvc-2", mirrored.clone(), 8), volume("pvc-3", "hdd".into(), 7)]);
    assert_eq!(refused.unwrap_err().wanted, (5 + 16) * GIB);
    let refused = capacity.admit("n1", &linear, &[volume("pvc-2", mirrored, 6)]);
    assert_eq!(refused.unwrap_err().wanted, (5 + 6) * GIB, "of what is free for mirrors");
}

#[tokio::test(start_paused = true)]
async fn mirrored_volume_stays_reserved_until_its_layout_figure_falls() {
    let capacity = with_copies();
    let volume = logical_volume("pvc-1").class("ssd").option_class("mirrored").sized("3Gi");
    capacity.apply_volume(&Event::Apply(volume.clone().build()));
    capacity.apply_volume(&Event::Apply(volume.ready("u", "3Gi").build()));
    assert_eq!(free_by_layout(&capacity), [14, 14, 7, 14]);
    let of_node = node("n1").capacity("", 14).capacity("ssd", 14).copies("ssd", "mirrored", 7, 2);
    capacity.apply_node(&Event::Apply(node_meta(of_node.build())));
    assert_eq!((free_by_layout(&capacity), capacity.next_release()), ([14, 14, 7, 14], None));
}

#[tokio::test]
async fn device_class_list_has_published_and_reserved_bytes() {
    let capacity = nodes(&[("n1", None, &[("", "9"), ("ssd", "9"), ("hdd", "5")]), ("n2", None, &[])]);
    let _hold = capacity.hold("pvc-1", "n1", "ssd".into(), 4);
    let mut classes = capacity.device_classes();
    classes.sort_by(|a, b| a.device_class.cmp(&b.device_class));
    let class = |device_class: &str, is_default, free, reserved| ClassCapacity {
        node: "n1".to_owned(),
        device_class: device_class.to_owned(),
        is_default,
        free,
        reserved,
    };
    assert_eq!(classes, [class("hdd", false, 5, 0), class("ssd", true, 9, 4)]);
}
