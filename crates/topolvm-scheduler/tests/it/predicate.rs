//! `/predicate`.

use http::StatusCode;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::Config;

use crate::support::{answer, node, pod, post, post_to, request};

const GIB: &str = "1073741824";

fn names(answer: &Value) -> Vec<&str> {
    let items = answer["nodes"]["items"].as_array().unwrap();
    items.iter().map(|node| node["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn nodes_without_space_fail_with_their_reason() {
    let nodes = [
        node("roomy", &[("ssd", "10737418240")]),
        node("exact", &[("ssd", GIB)]),
        node("full", &[("ssd", "1073741823")]),
        node("odd", &[("ssd", "foo")]),
        node("without", &[("hdd", GIB)]),
        json!({"metadata": {"name": "bare"}}),
    ];
    let answer = answer("/predicate", &request(&pod(&[("ssd", 1)]), &nodes)).await;
    assert_eq!(names(&answer), ["roomy", "exact"]);
    let reasons = json!({
        "full": "out of VG free space",
        "odd": "bad capacity annotation: foo",
        "without": "no capacity annotation",
        "bare": "no capacity annotation",
    });
    assert_eq!(answer["failedNodes"], reasons);
    // No eviction of pods makes room
    assert_eq!(answer["failedAndUnresolvableNodes"], reasons);
}

#[tokio::test]
async fn every_requested_class_must_have_space() {
    let nodes = [node("both", &[("ssd", GIB), ("hdd", GIB)]), node("one", &[("ssd", GIB), ("hdd", "1")])];
    let answer = answer("/predicate", &request(&pod(&[("ssd", 1), ("hdd", 1)]), &nodes)).await;
    assert_eq!(names(&answer), ["both"]);
    assert_eq!(answer["failedNodes"], json!({"one": "out of VG free space"}));
}

#[tokio::test]
async fn all_nodes_fit_a_pod_that_requests_nothing() {
    let mut pod = pod(&[]);
    pod["metadata"]["annotations"] = json!({"capacity.topolvm.io/ssd": "a lot", "other": "1"});
    let answer = answer("/predicate", &request(&pod, &[node("a", &[]), node("b", &[])])).await;
    assert_eq!(names(&answer), ["a", "b"]);
    assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["nodes"]);
}

#[tokio::test]
async fn kept_nodes_come_back_byte_for_byte() {
    let kept = concat!(
        r#"{"metadata":{"name":"a","annotations":{"capacity.topolvm.io/ssd":"1073741824"},"future":[1.50,1e2, null]},"#,
        r#""spec":{"newField":{"x":9007199254740993}},"status":{"images":[{"names":["\u00e9"]}]}}"#
    );
    let pod = pod(&[("ssd", 1)]);
    let list = r#""metadata":{"resourceVersion":"7"},"items":"#;
    let nodes = format!(r#"{{"kind":"NodeList","apiVersion":"v1",{list}[{kept} , {{"metadata":{{"name":"b"}}}}]}}"#);
    let text = format!(r#"{{"Pod":{pod},"Nodes":{nodes}}}"#);
    let (status, body) = post("/predicate", text).await;
    assert_eq!(status, StatusCode::OK);
    let nodes = format!(r#"{{"apiVersion":"v1","kind":"NodeList",{list}[{kept}]}}"#);
    let failed = r#"{"b":"no capacity annotation"}"#;
    let fields = format!(r#""failedNodes":{failed},"failedAndUnresolvableNodes":{failed}"#);
    assert_eq!(body, format!(r#"{{"nodes":{nodes},{fields}}}"#));
}

#[tokio::test]
async fn lower_case_keys_are_understood_too() {
    let nodes = json!({"items": [node("a", &[("ssd", GIB)])]});
    let answer = answer("/predicate", &json!({"pod": pod(&[("ssd", 1)]), "nodes": nodes, "nodenames": null})).await;
    assert_eq!(names(&answer), ["a"]);
}

#[tokio::test]
async fn names_without_nodes_are_answered_with_what_to_change() {
    let text = json!({"Pod": pod(&[("ssd", 1)]), "Nodes": null, "NodeNames": ["a"]});
    let answer = answer("/predicate", &text).await;
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("nodeCacheCapable: false"), "{error}");
}

#[tokio::test]
async fn the_legacy_flavor_reads_its_own_annotations() {
    let of_group = |group: &str| format!("capacity.{group}/ssd");
    let object = |name: &str, group: &str| json!({"metadata": {"name": name, "annotations": {of_group(group): GIB}}});
    let request = request(
        &object("pod", "topolvm.cybozu.com"),
        &[object("old", "topolvm.cybozu.com"), object("new", "topolvm.io")],
    );
    let (_, body) = post_to(ApiFlavor::Legacy, &Config::default(), "/predicate", request.to_string()).await;
    assert_eq!(names(&serde_json::from_str(&body).unwrap()), ["old"]);
}

#[tokio::test]
async fn an_empty_list_of_nodes_has_an_empty_answer() {
    let answer = answer("/predicate", &json!({"Pod": pod(&[]), "Nodes": {"metadata": {}, "items": null}})).await;
    assert_eq!(answer["nodes"]["items"], json!([]));
}
