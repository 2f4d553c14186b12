//! `/prioritize`.

use http::StatusCode;
use serde_json::json;
use topolvm_api::{ApiFlavor, NodeStrategy};
use topolvm_scheduler::{Config, Scoring};

use crate::support::{answer, node, pod, post, post_to, request};

#[tokio::test]
async fn nodes_are_scored_by_free_space() {
    let nodes = [
        node("big", &[("ssd", "137438953472")]),
        node("small", &[("ssd", "1073741824")]),
        node("odd", &[("ssd", "foo")]),
        json!({"metadata": {"name": "bare", "annotations": null}}),
    ];
    assert_eq!(
        answer("/prioritize", &request(&pod(&[("ssd", 1)]), &nodes)).await,
        json!([
            {"host": "big", "score": 7}, {"host": "small", "score": 0},
            {"host": "odd", "score": 0}, {"host": "bare", "score": 0},
        ])
    );
}

#[tokio::test]
async fn settings_change_the_score() {
    let scoring = Scoring { minimum: 1, default_divisor: 64.0, ..Scoring::default() };
    let config = Config { scoring, ..Config::default() };
    let nodes = [node("big", &[("ssd", "137438953472")]), node("small", &[("ssd", "1073741824")])];
    let request = request(&pod(&[("ssd", 1)]), &nodes).to_string();
    let (_, body) = post_to(ApiFlavor::TopoLvm, &config, "/prioritize", request).await;
    assert_eq!(body, r#"[{"host":"big","score":1},{"host":"small","score":1}]"#);
}

#[tokio::test]
async fn with_binpack_the_fuller_node_scores_higher() {
    let scoring = Scoring { strategy: NodeStrategy::Binpack, ..Scoring::default() };
    let config = Config { scoring, ..Config::default() };
    let nodes = [node("big", &[("ssd", "137438953472")]), node("small", &[("ssd", "2147483648")])];
    let request = request(&pod(&[("ssd", 1)]), &nodes).to_string();
    let (_, body) = post_to(ApiFlavor::TopoLvm, &config, "/prioritize", request).await;
    assert_eq!(body, r#"[{"host":"big","score":4},{"host":"small","score":10}]"#);
}

#[tokio::test]
async fn a_pod_that_requests_nothing_has_no_scores() {
    let text = request(&pod(&[]), &[node("a", &[("ssd", "1")])]).to_string();
    assert_eq!(post("/prioritize", text).await, (StatusCode::OK, "null".to_owned()));
}

#[tokio::test]
async fn names_without_nodes_are_a_bad_request() {
    let text = json!({"Pod": pod(&[("ssd", 1)]), "NodeNames": ["a"]}).to_string();
    assert_eq!(post("/prioritize", text).await, (StatusCode::BAD_REQUEST, "Bad Request.".to_owned()));
}
