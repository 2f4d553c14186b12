//! The line that each request leaves in the log.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_scheduler::{Config, Metrics, Watches, router};
use topolvm_testkit::Log;
use tower::ServiceExt as _;

#[rstest]
#[case::found("/status", 200, "2")]
#[case::not_found("/nowhere?x=1", 404, "9")]
#[tokio::test]
async fn a_request_is_logged_with_the_fields_that_log_pipelines_know(
    #[case] url: &str,
    #[case] status: u16,
    #[case] size: &str,
) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
    let router =
        router(ApiFlavor::TopoLvm, &Config::default(), Watches::default(), Metrics::register(&mut Registry::default()));
    let mut request = Request::get(url)
        .header("host", "localhost:9251")
        .header("user-agent", "kube-scheduler/v1.33")
        .header("content-length", "3")
        .body(Body::from("abc"))
        .unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1234))));
    {
        let _guard = tracing::subscriber::set_default(subscriber);
        router.oneshot(request).await.unwrap();
    }
    let mut line: Value = serde_json::from_str(&log.take()).unwrap();
    let fields = line.as_object_mut().unwrap();
    assert!(fields.remove("response_time").unwrap().is_f64());
    fields.retain(|name, _| !["timestamp", "level", "target", "message"].contains(&name.as_str()));
    assert_eq!(
        line,
        json!({
            "type": "access", "protocol": "HTTP/1.1", "http_status_code": status, "http_method": "GET", "url": url,
            "http_host": "localhost:9251", "request_size": "3", "response_size": size, "remote_ipaddr": "10.0.0.1",
            "http_user_agent": "kube-scheduler/v1.33",
        })
    );
}
