//! Answers of `/api/volumes` and `/api/summary`.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use topolvm_api::LogicalVolume;
use topolvm_doctor::Checked;
use topolvm_testkit::fixtures::{logical_volume, node};

use super::harness::{Harness, now, text};

fn nodes() -> Vec<Node> {
    vec![
        node("n1").capacity("", 5).capacity("ssd", 5).capacity("hdd", 7).build(),
        node("n2").capacity("hdd", 1).capacity("", 0).build(),
        node("n3").build(),
    ]
}

fn volumes() -> Vec<LogicalVolume> {
    let claimed = |name: &str, claim: &str| logical_volume(name).uid(name).annotation("topolvm.io/claim", claim);
    vec![
        claimed("pvc-1", "shop/data").class("hdd").sized("3Gi").ready("pvc-1", "3Gi").build(),
        claimed("pvc-2", "shop/cache").ready("pvc-2", "1Gi").build(),
        claimed("pvc-3", "bank/ledger").on("n2").class("hdd").sized("2Gi").failed(8, "no room").build(),
        claimed("pvc-4", "bank/archive").on("gone").class("hdd").sized("9Gi").ready("pvc-4", "9Gi").build(),
        logical_volume("snap-1").uid("snap-1").from_source("pvc-1", "ro").class("hdd").ready("snap-1", "1Gi").build(),
    ]
}

fn names(answer: &Value) -> Vec<&str> {
    answer["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[rstest::rstest]
#[case::problems_first("", &["pvc-4", "pvc-3", "pvc-2", "pvc-1", "snap-1"])]
#[case::all_words("q=SHOP+n1", &["pvc-2", "pvc-1"])]
#[case::of_a_namespace("namespace=bank", &["pvc-4", "pvc-3"])]
#[case::on_a_node("node=n1&sort=name", &["pvc-2", "pvc-1", "snap-1"])]
#[case::in_a_class("class=ssd", &["pvc-2"])]
#[case::in_a_state("state=Snapshot", &["snap-1"])]
#[case::with_a_problem("state=problem", &["pvc-4", "pvc-3"])]
#[case::by_size("sort=size", &["pvc-2", "snap-1", "pvc-3", "pvc-1", "pvc-4"])]
#[case::the_largest("sort=-size&limit=2", &["pvc-4", "pvc-1"])]
#[case::another_page("sort=-size&offset=3&limit=9", &["pvc-2", "snap-1"])]
#[case::beyond_the_end("offset=99", &[])]
#[tokio::test]
async fn volumes_are_filtered_sorted_and_cut_into_pages(#[case] query: &str, #[case] expected: &[&str]) {
    let harness = Harness::new(nodes(), volumes());
    let answer = harness.get(&format!("/api/volumes?{query}")).await;
    assert_eq!((names(&answer), &answer["total"]), (expected.to_vec(), &json!(5)));
}

#[tokio::test]
async fn a_row_says_all_of_a_volume_and_what_is_to_be_done() {
    let harness = Harness::new(nodes(), volumes());
    let answer = harness.get("/api/volumes?q=ledger").await;
    let expected = json!({
        "name": "pvc-3", "namespace": "bank", "claim": "ledger", "node": "n2", "class": "hdd",
        "size": 2_147_483_648_u64, "state": "CreateFailed", "lv": "", "created": null,
        "problem": {
            "what": "creation failed: no room",
            "remedy": "free space in the device class hdd of node n2, extend its volume group, or request less",
        },
    });
    assert_eq!((&answer["rows"][0], &answer["matched"]), (&expected, &json!(1)));
}

#[tokio::test]
async fn a_query_that_cannot_be_answered_is_refused_with_what_can() {
    let answer = Harness::new(nodes(), volumes()).send("/api/volumes?sort=colour").await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert!(text(answer).await.contains("problem, name, size"));
}

#[tokio::test]
async fn the_summary_has_each_class_of_each_node_and_what_was_found() {
    let harness = Harness::new(nodes(), volumes());
    let gib = |gib: u64| gib << 30;
    let answer = harness.get("/api/summary").await;
    let class = |name: &str, is_default: bool, free: Value, used: u64, volumes: u64| {
        json!({
            "name": name, "isDefault": is_default, "free": free, "reserved": 0, "used": gib(used), "volumes": volumes,
        })
    };
    let expected = json!([
        {"name": "gone", "exists": false, "classes": [class("hdd", false, Value::Null, 9, 1)]},
        {"name": "n1", "exists": true, "classes": [
            class("hdd", false, gib(7).into(), 4, 2), class("ssd", true, gib(5).into(), 1, 1),
        ]},
        // What could not be made takes no room
        {"name": "n2", "exists": true, "classes": [class("hdd", false, gib(1).into(), 0, 1)]},
    ]);
    assert_eq!(answer["nodes"], expected);
    assert_eq!((&answer["otherNodes"], &answer["isListed"]), (&json!(1), &json!(true)));
    assert_eq!(answer["namespaces"], json!(["bank", "shop"]));
    let by_state = json!({"CreateFailed": 1, "Ready": 3, "Snapshot": 1});
    assert_eq!(answer["volumes"], json!({"total": 5, "withProblem": 2, "byState": by_state}));
    assert_eq!(answer["checks"], Value::Null);

    let checked = Checked { at: now(), findings: Vec::new(), more: 3 };
    harness.checked.send_replace(Some(Arc::new(checked)));
    let answer = harness.get("/api/summary").await;
    assert_eq!(answer["checks"], json!({"at": "2026-01-02T00:00:00Z", "findings": [], "more": 3}));
}

#[tokio::test]
async fn what_a_chosen_node_has_is_read_when_it_is_asked_for() {
    let harness = Harness::new(nodes(), volumes());
    let answer = harness.get("/api/storage?node=n1").await;
    assert!(answer["unknown"].as_str().unwrap().contains("This node has no NodeStorage"), "{answer}");
    harness.server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "NodeStorage", "metadata": {"name": "n1"},
        "status": {
            "volumeGroups": [{"name": "vg", "size": "2Gi", "free": "1Gi", "physicalVolumes": [
                {"path": "/dev/sdb", "uuid": "a", "size": "1Gi", "free": "1Gi", "allocatable": true},
                {"uuid": "b", "size": "1Gi", "free": "0", "missing": true, "allocatable": false},
                {
                    "path": "/dev/sdd", "uuid": "c", "size": "1Gi", "free": "0", "allocatable": false,
                    "evacuation": {"state": "blocked", "message": "no room", "remaining": "1Gi", "remove": true},
                },
            ]}],
            "thinPools": [{"volumeGroup": "vg", "name": "pool", "size": "1Gi", "dataPercent": 61}],
            "problems": ["a disk is missing"],
        },
    }));
    let gib = 1_u64 << 30;
    let expected = json!({
        "groups": [{"name": "vg", "size": 2 * gib, "free": gib, "disks": [
            {"path": "/dev/sdb", "size": gib, "free": gib, "missing": false},
            {"path": "", "size": gib, "free": 0, "missing": true},
            {
                "path": "/dev/sdd", "size": gib, "free": 0, "missing": false,
                "evacuation": {"state": "blocked", "message": "no room", "remaining": gib},
            },
        ]}],
        "pools": [{"name": "vg/pool", "size": gib, "data": 61, "metadata": null}],
        "problems": ["a disk is missing"],
        "unknown": null,
    });
    assert_eq!(harness.get("/api/storage?node=n1").await, expected);

    harness.server.fail_next("get", "nodestorages", 1, 403);
    let answer = harness.get("/api/storage?node=n1").await;
    assert!(answer["unknown"].as_str().unwrap().contains("Cannot read the NodeStorage"), "{answer}");
    assert_eq!(harness.send("/api/storage").await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn text_of_the_cluster_stays_text() {
    let hostile = "<img src=x onerror=alert(1)>";
    let volume = logical_volume("pvc-1").annotation("topolvm.io/claim", &format!("ns/{hostile}")).build();
    let answer = Harness::new(nodes(), vec![volume]).get("/api/volumes").await;
    assert_eq!(answer["rows"][0]["claim"], hostile);
}
