//! Who gets the metrics.

use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use clap::Parser;
use rstest::rstest;
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use topolvm_testkit::ApiServer;
use tower::ServiceExt as _;

use super::*;

const SCRAPER: &str = "system:serviceaccount:monitoring:prometheus";

/// An API server that knows two tokens, one of somebody who may get the metrics.
fn api_server() -> ApiServer {
    let api = ApiServer::new();
    api.know_token("scraper", SCRAPER);
    api.know_token("stranger", "system:serviceaccount:default:default");
    api.allow(SCRAPER, "get", "/metrics");
    api
}

fn router(api: &ApiServer) -> Router {
    guarded(admin::metrics_router(Arc::new(Registry::default())), Access::new(api.client()))
}

async fn ask(router: &Router, authorization: &str) -> (StatusCode, String) {
    let mut request = Request::get("/metrics").body(Body::empty()).unwrap();
    if !authorization.is_empty() {
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
    }
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[rstest]
#[case::nobody("", StatusCode::UNAUTHORIZED)]
#[case::no_token("Bearer ", StatusCode::UNAUTHORIZED)]
#[case::another_scheme("Basic c2NyYXBlcg==", StatusCode::UNAUTHORIZED)]
#[case::unknown("Bearer made-up", StatusCode::UNAUTHORIZED)]
#[case::without_the_right("Bearer stranger", StatusCode::FORBIDDEN)]
#[case::with_the_right("Bearer scraper", StatusCode::OK)]
#[case::scheme_in_another_case("bearer scraper", StatusCode::OK)]
#[tokio::test]
async fn the_metrics_are_for_those_whom_the_api_server_lets(#[case] authorization: &str, #[case] expected: StatusCode) {
    assert_eq!(ask(&router(&api_server()), authorization).await.0, expected);
}

#[tokio::test]
async fn who_is_refused_hears_why() {
    let (_, said) = ask(&router(&api_server()), "Bearer stranger").await;
    assert_eq!(
        said,
        "system:serviceaccount:default:default may not get /metrics; bind a ClusterRole with this nonResourceURL\n"
    );
}

#[tokio::test]
async fn an_api_server_that_cannot_be_asked_lets_nobody_in() {
    let api = api_server();
    api.disconnect();
    assert_eq!(ask(&router(&api), "Bearer scraper").await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn the_api_server_is_asked_again_after_a_minute() {
    let api = api_server();
    let router = router(&api);
    let reviews = || api.requests().len();
    for _ in 0..3 {
        assert_eq!(ask(&router, "Bearer scraper").await.0, StatusCode::OK);
    }
    assert_eq!(reviews(), 2);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(ask(&router, "Bearer scraper").await.0, StatusCode::OK);
    assert_eq!(reviews(), 4);
}

#[tokio::test]
async fn a_right_that_is_given_counts_at_once() {
    let api = api_server();
    let router = router(&api);
    assert_eq!(ask(&router, "Bearer stranger").await.0, StatusCode::FORBIDDEN);
    api.allow("system:serviceaccount:default:default", "get", "/metrics");
    assert_eq!(ask(&router, "Bearer stranger").await.0, StatusCode::OK);
}

fn plain(address: &str) -> MetricsConfig {
    MetricsConfig::plain(address.parse().unwrap())
}

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    metrics: MetricsArgs,
}

#[rstest]
#[case(&[], plain(":8080"))]
#[case(&["--secure-metrics-server=false", "--metrics-bind-address="], plain(""))]
#[case(&["--secure-metrics-server"], MetricsConfig { secure: Some(Certificate::Own), ..plain(":8080") })]
#[case(
    &["--secure-metrics-server=true", "--metrics-cert-dir=/c"],
    MetricsConfig { secure: Some(Certificate::Files("/c".into())), ..plain(":8080") }
)]
fn flags_say_how_metrics_are_served(#[case] flags: &[&str], #[case] expected: MetricsConfig) {
    let program = Program::try_parse_from([&["program"], flags].concat()).unwrap();
    assert_eq!(MetricsConfig::from(program.metrics), expected);
}

/// A connection that trusts this certificate only; the server may still be about to listen.
async fn connect(address: &str, certificate: &str) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    loop {
        if let Ok(connection) = TcpStream::connect(address).await {
            let name = ServerName::try_from("metrics").unwrap();
            if let Ok(connection) = connector.connect(name, connection).await {
                return connection;
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_certificate_in_files_is_served_and_the_server_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["metrics".to_owned()]).unwrap();
    std::fs::write(dir.path().join("tls.crt"), own.cert.pem()).unwrap();
    std::fs::write(dir.path().join("tls.key"), own.signing_key.serialize_pem()).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let secure = Some(Certificate::Files(dir.path().to_owned()));
    let config = MetricsConfig { secure, ..plain(&address) };
    config.start(Arc::new(Registry::default()), api_server().client(), &tasks, &shutdown);

    let mut connection = connect(&address, &own.cert.pem()).await;
    let request =
        "GET /metrics HTTP/1.1\r\nhost: metrics\r\nauthorization: Bearer scraper\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    shutdown.cancel();
    tasks.wait().await.unwrap();
}

#[rstest]
#[case("")]
#[case("0")]
#[tokio::test]
async fn an_address_that_means_off_makes_no_certificate_and_serves_nothing(#[case] off: &str) {
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let config = MetricsConfig { secure: Some(Certificate::Files("/nowhere".into())), ..plain(off) };
    config.start(Arc::new(Registry::default()), api_server().client(), &tasks, &shutdown);
    let ended = tasks.wait();
    tokio::pin!(ended);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut ended).await.is_err(), "it has ended");
    shutdown.cancel();
    ended.await.unwrap();
}

#[test]
fn a_certificate_of_our_own_can_be_made_and_used() {
    Served::default().make_own().unwrap();
}
