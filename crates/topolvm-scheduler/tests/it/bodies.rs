//! Malformed requests, and very long ones.

use http::{Method, Request, StatusCode};
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::{Config, Metrics, Watches, router};
use tower::ServiceExt as _;

use crate::support::{node, pod, post, post_to, request};

#[rstest]
#[case::empty("")]
#[case::no_json("{")]
#[case::no_object("[1]")]
#[case::no_pod(r#"{"Nodes":{"items":[]}}"#)]
#[case::no_nodes(r#"{"Pod":{"metadata":{"annotations":{"capacity.topolvm.io/ssd":"1"}}}}"#)]
#[case::null_nodes(r#"{"Pod":{},"Nodes":null,"NodeNames":null}"#)]
#[case::node_that_is_none(r#"{"Pod":{},"Nodes":{"items":[1]}}"#)]
#[tokio::test]
async fn a_body_that_is_no_request_is_a_bad_request(#[case] body: &'static str) {
    assert_eq!(post("/predicate", body).await, (StatusCode::BAD_REQUEST, "bad request".to_owned()));
    assert_eq!(post("/prioritize", body).await, (StatusCode::BAD_REQUEST, "Bad Request.".to_owned()));
}

#[rstest]
#[case("/")]
#[case("/predicate/")]
#[case("/Predicate")]
#[case("/metrics")]
#[tokio::test]
async fn other_paths_are_not_found(#[case] path: &str) {
    assert_eq!(post(path, "").await, (StatusCode::NOT_FOUND, "not found".to_owned()));
}

#[rstest]
#[case(Method::GET)]
#[case(Method::HEAD)]
#[case(Method::POST)]
#[tokio::test]
async fn the_status_is_ok_for_any_method(#[case] method: Method) {
    let router =
        router(ApiFlavor::TopoLvm, &Config::default(), Watches::default(), Metrics::register(&mut Registry::default()));
    let request = Request::builder().method(method.clone()).uri("/status").body(axum::body::Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = axum::body::to_bytes(response.into_body(), 10).await.unwrap();
    assert_eq!(body, if method == Method::HEAD { "" } else { "ok" });
}

#[tokio::test]
async fn thousands_of_big_nodes_are_filtered() {
    let mut nodes: Vec<Value> = (0..2000)
        .map(|number| node(&format!("n{number}"), &[("ssd", if number % 2 == 0 { "1073741824" } else { "0" })]))
        .collect();
    for node in &mut nodes {
        node["status"]["images"] = json!(["x".repeat(10_000)]);
    }
    let text = request(&pod(&[("ssd", 1)]), &nodes).to_string();
    assert!(text.len() > 20_000_000, "upstream's limit of 10 MiB is exceeded");
    let (status, body) = post("/predicate", text).await;
    assert_eq!(status, StatusCode::OK);
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["nodes"]["items"].as_array().unwrap().len(), 1000);
    assert_eq!(answer["failedNodes"].as_object().unwrap().len(), 1000);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_with_the_setting_to_raise() {
    let config = Config { max_request_bytes: 1 << 20, ..Config::default() };
    let text = " ".repeat((1 << 20) + 1);
    // Once with its length announced, once in pieces
    let pieces = futures::stream::iter([Ok::<_, std::io::Error>(text.clone())]);
    for body in [text.into(), axum::body::Body::from_stream(pieces)] {
        let (status, message) = post_to(ApiFlavor::TopoLvm, &config, "/predicate", body).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(message, "the request is longer than 1 MiB; raise max-request-mib");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up_after_half_a_minute() {
    let started = tokio::time::Instant::now();
    let stalled = futures::stream::pending::<Result<String, std::io::Error>>();
    let (status, _) = post("/predicate", axum::body::Body::from_stream(stalled)).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test]
async fn requests_and_results_are_counted() {
    let mut registry = Registry::default();
    let router = router(ApiFlavor::TopoLvm, &Config::default(), Watches::default(), Metrics::register(&mut registry));
    let nodes = [node("a", &[("ssd", "0")]), node("b", &[("ssd", "1073741824")])];
    let body = request(&pod(&[("ssd", 1)]), &nodes).to_string();
    for path in ["/predicate", "/nowhere"] {
        router.clone().oneshot(Request::post(path).body(axum::body::Body::from(body.clone())).unwrap()).await.unwrap();
    }
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    for line in [
        r#"topolvm_scheduler_request_duration_seconds_count{path="/predicate",code="200"} 1"#,
        r#"topolvm_scheduler_request_duration_seconds_count{path="other",code="404"} 1"#,
        r#"topolvm_scheduler_node_results_total{result="fits"} 1"#,
        r#"topolvm_scheduler_node_results_total{result="out_of_space"} 1"#,
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
}
