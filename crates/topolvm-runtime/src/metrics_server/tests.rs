//! Tests of who gets the metrics.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, StatusCode};
use clap::Parser;
use prometheus_client::registry::Registry;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::*;
use crate::authorized_server::Authorization;
use crate::tls::TlsClient;

/// Knows two tokens, one of a user who may get the metrics, and does not answer about a third one.
struct Tokens;

impl Authorizer for Tokens {
    type Error = std::io::Error;

    async fn authorize(&self, token: &str, verb: &str, path: &str) -> Result<Authorization, std::io::Error> {
        assert_eq!((verb, path), ("get", "/metrics"));
        match token {
            "scraper" => Ok(Authorization::Allowed),
            "stranger" => Ok(Authorization::Forbidden("system:serviceaccount:default:default".to_owned())),
            "unlucky" => Err(std::io::Error::other("the API server does not answer")),
            _ => Ok(Authorization::Unauthenticated),
        }
    }
}

fn router() -> Router {
    require_authorization(admin::metrics_router(Arc::new(Registry::default())), Tokens)
}

async fn ask(authorization: &str) -> (StatusCode, String) {
    let mut request = Request::get("/metrics").body(Body::empty()).unwrap();
    if !authorization.is_empty() {
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
    }
    let answer = router().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[rstest]
#[case::no_credentials("", StatusCode::UNAUTHORIZED)]
#[case::no_token("Bearer ", StatusCode::UNAUTHORIZED)]
#[case::another_scheme("Basic c2NyYXBlcg==", StatusCode::UNAUTHORIZED)]
#[case::unknown("Bearer made-up", StatusCode::UNAUTHORIZED)]
#[case::without_the_right("Bearer stranger", StatusCode::FORBIDDEN)]
#[case::unavailable("Bearer unlucky", StatusCode::SERVICE_UNAVAILABLE)]
#[case::with_the_right("Bearer scraper", StatusCode::OK)]
#[case::scheme_in_another_case("bearer scraper", StatusCode::OK)]
#[tokio::test]
async fn the_metrics_are_for_those_whom_the_authorizer_allows(
    #[case] authorization: &str,
    #[case] expected: StatusCode,
) {
    assert_eq!(ask(authorization).await.0, expected);
}

#[tokio::test]
async fn who_is_refused_hears_why() {
    let (_, said) = ask("Bearer stranger").await;
    assert_eq!(
        said,
        "system:serviceaccount:default:default may not get /metrics; bind a ClusterRole with this nonResourceURL\n"
    );
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
#[case(&["--secure-metrics-server"], MetricsConfig { secure: Some(CertificateSource::Own), ..plain(":8080") })]
#[case(
    &["--secure-metrics-server=true", "--metrics-cert-dir=/c"],
    MetricsConfig { secure: Some(CertificateSource::Files("/c".into())), ..plain(":8080") }
)]
fn flags_say_how_metrics_are_served(#[case] flags: &[&str], #[case] expected: MetricsConfig) {
    let program = Program::try_parse_from([&["program"], flags].concat()).unwrap();
    assert_eq!(MetricsConfig::from(program.metrics), expected);
}

/// Returns the answer to a request for the metrics over TLS, to a server with this certificate, which then ends.
async fn scrape_over_tls(certificate: CertificateSource, client: &TlsClient) -> String {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let config = MetricsConfig { secure: Some(certificate), ..plain(&address.to_string()) };
    config.start(Arc::new(Registry::default()), Tokens, &tasks, &shutdown);

    let connecting = async {
        loop {
            // The server may still be about to listen, or about to read its certificate
            if let Ok(connection) = TcpStream::connect(address).await
                && let Ok(connection) = client.connect(connection).await
            {
                return connection;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut connection = timeout(Duration::from_secs(20), connecting).await.expect("no TLS within 20 s");
    let request =
        "GET /metrics HTTP/1.1\r\nhost: metrics\r\nauthorization: Bearer scraper\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    shutdown.cancel();
    tasks.wait().await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn certificate_in_files_is_served_and_the_server_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let own = rcgen::generate_simple_self_signed(["metrics".to_owned()]).unwrap();
    std::fs::write(dir.path().join("tls.crt"), own.cert.pem()).unwrap();
    std::fs::write(dir.path().join("tls.key"), own.signing_key.serialize_pem()).unwrap();
    let client = TlsClient::verifying("metrics", own.cert.pem().as_bytes()).unwrap();
    let answer = scrape_over_tls(CertificateSource::Files(dir.path().to_owned()), &client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn own_certificate_is_served() {
    let client = TlsClient::verifying_nothing("metrics").unwrap();
    let answer = scrape_over_tls(CertificateSource::Own, &client).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[rstest]
#[case("")]
#[case("0")]
#[tokio::test]
async fn an_address_that_means_off_does_not_end_the_process(#[case] off: &str) {
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    let config = MetricsConfig { secure: Some(CertificateSource::Files("/nowhere".into())), ..plain(off) };
    config.start(Arc::new(Registry::default()), Tokens, &tasks, &shutdown);
    let ended = tasks.wait();
    tokio::pin!(ended);
    timeout(Duration::from_millis(50), &mut ended).await.expect_err("it has ended");
    shutdown.cancel();
    ended.await.unwrap();
}
