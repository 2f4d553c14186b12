//! Rows of made-up nodes.

use serde_json::{Value, json};
use topolvm_api::ApiFlavor::TopoLvm;

use super::*;

const GI: u64 = 1 << 30;

fn node(name: &str, free: &Value) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": free},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn volume(node: &str, class: &str, size: &str, current: Option<&str>) -> LogicalVolume {
    let mut volume = json!({
        "metadata": {"name": "v"}, "spec": {"name": "v", "nodeName": node, "size": size, "deviceClass": class},
    });
    if let Some(current) = current {
        volume["status"] = json!({"volumeID": "u", "currentSize": current});
    }
    serde_json::from_value(volume).unwrap()
}

/// Node, class and a star for the default one; size, free and reserved GiB; volumes.
type Short = (String, Option<u64>, Option<u64>, u64, usize);

fn short(rows: &[ClassRow]) -> Vec<Short> {
    let of = |row: &ClassRow| {
        let star = if row.is_default { "*" } else { "" };
        let gib = |bytes: Option<u64>| bytes.map(|bytes| bytes / GI);
        let name = format!("{}/{}{star}", row.node, row.device_class);
        (name, gib(row.size_bytes), gib(row.free_bytes), row.reserved_bytes / GI, row.volumes)
    };
    rows.iter().map(of).collect()
}

#[test]
fn volumes_count_where_they_are_with_the_size_that_they_have() {
    let nodes = [node(
        "n1",
        &json!({
            "capacity.topolvm.io/00default": (5 * GI).to_string(), "capacity.topolvm.io/ssd": (5 * GI).to_string(),
            "capacity.topolvm.io/hdd": (7 * GI).to_string(),
        }),
    )];
    let volumes = [
        volume("n1", "", "1Gi", Some("2Gi")),
        volume("n1", "ssd", "3Gi", None),
        volume("n1", "hdd", "1Gi", Some("1Gi")),
        volume("gone", "hdd", "1Gi", Some("1Gi")),
    ];
    let rows = rows(TopoLvm, &nodes, &volumes);
    assert_eq!(
        short(&rows),
        [
            ("gone/hdd".to_owned(), None, None, 1, 1),
            ("n1/hdd".to_owned(), Some(8), Some(7), 1, 1),
            ("n1/ssd*".to_owned(), Some(10), Some(5), 5, 2),
        ]
    );
    assert_eq!((rows[0].node_ready, rows[1].node_ready), (false, true));
}

#[test]
fn a_default_class_that_could_be_two_has_a_row_of_its_own() {
    let free = json!({
        "capacity.topolvm.io/00default": GI.to_string(), "capacity.topolvm.io/a": GI.to_string(),
        "capacity.topolvm.io/b": GI.to_string(),
    });
    let rows = rows(TopoLvm, &[node("n1", &free)], &[volume("n1", "", "1Gi", None)]);
    let names: Vec<_> = short(&rows).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["n1/*", "n1/a", "n1/b"]);
}

#[test]
fn a_node_without_a_default_class_shows_none() {
    let free = json!({"capacity.topolvm.io/00default": "0", "capacity.topolvm.io/a": GI.to_string()});
    let rows = rows(TopoLvm, &[node("n1", &free), node("other", &json!({}))], &[]);
    assert_eq!(short(&rows), [("n1/a".to_owned(), Some(1), Some(1), 0, 0)]);
}

#[test]
fn node_without_a_device_class_has_no_row() {
    let nothing = json!({"capacity.topolvm.io/00default": "0"});
    assert_eq!(short(&rows(TopoLvm, &[node("n1", &nothing)], &[])), []);
    // One that TopoLVM publishes without another name may have volumes
    let full = rows(TopoLvm, &[node("n1", &nothing)], &[volume("n1", "", "1Gi", None)]);
    assert_eq!(short(&full), [("n1/*".to_owned(), Some(1), Some(0), 1, 1)]);
}

#[test]
fn people_see_a_bar_and_programs_bytes() {
    let free = json!({"capacity.topolvm.io/00default": GI.to_string(), "capacity.topolvm.io/ssd": GI.to_string()});
    let rows = rows(TopoLvm, &[node("n1", &free)], &[volume("n1", "ssd", "1Gi", None)]);
    let expected = "NODE   CLASS           SIZE   FREE   RESERVED   USED              VOLUMES\n\
                    n1     ssd (default)   2Gi    1Gi    1Gi        █████░░░░░  50%   1\n";
    assert_eq!(in_table(&rows, false, true), expected);
    let json: Value = serde_json::from_str(&output::render(Format::Json, &rows, |_| String::new()).unwrap()).unwrap();
    let expected = json!({"items": [{
        "node": "n1", "nodeReady": true, "deviceClass": "ssd", "isDefault": true, "sizeBytes": 2 * GI, "freeBytes": GI,
        "reservedBytes": GI, "volumes": 1,
    }]});
    assert_eq!(json, expected);
    assert_eq!(output::render(Format::Name, &rows, |_| String::new()).unwrap(), "node/n1\n");
}
