//! Sending requests to the router.

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::{Config, Metrics, Watches, router};
use tower::ServiceExt as _;

pub(crate) async fn post(path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    post_to(ApiFlavor::TopoLvm, &Config::default(), path, body).await
}

pub(crate) async fn post_to(
    flavor: ApiFlavor,
    config: &Config,
    path: &str,
    body: impl Into<Body>,
) -> (StatusCode, String) {
    post_to_router(router(flavor, config, Watches::default(), Metrics::register(&mut Registry::default())), path, body)
        .await
}

pub(crate) async fn post_to_router(router: Router, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    let response = router.oneshot(Request::post(path).body(body.into()).unwrap()).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The answer as JSON; anything but 200 fails the test.
pub(crate) async fn answer(path: &str, request: &Value) -> Value {
    as_json(post(path, request.to_string()).await)
}

/// The answer of a router with watches as JSON; anything but 200 fails the test.
pub(crate) async fn answer_of_router(router: &Router, path: &str, request: &Value) -> Value {
    as_json(post_to_router(router.clone(), path, request.to_string()).await)
}

fn as_json((status, body): (StatusCode, String)) -> Value {
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The answer that keeps nodes by name and refuses others for these reasons, which no eviction removes.
pub(crate) fn kept_and_refused(kept: &[&str], reasons: &Value) -> Value {
    json!({"nodenames": kept, "failedNodes": reasons, "failedAndUnresolvableNodes": reasons})
}

/// A pod that wants so many GiB of these classes.
pub(crate) fn pod(requests: &[(&str, u64)]) -> Value {
    annotated("pod", requests.iter().map(|&(class, gib)| (class, (gib << 30).to_string())))
}

/// A node with these annotations.
pub(crate) fn node(name: &str, capacity: &[(&str, &str)]) -> Value {
    annotated(name, capacity.iter().map(|&(class, free)| (class, free.to_owned())))
}

fn annotated<'a>(name: &str, annotations: impl Iterator<Item = (&'a str, String)>) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.map(|(class, value)| (format!("capacity.topolvm.io/{class}"), value.into())).collect();
    json!({"metadata": {"name": name, "annotations": annotations}})
}

/// As kube-scheduler writes it.
pub(crate) fn request(pod: &Value, nodes: &[Value]) -> Value {
    json!({"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": null})
}
