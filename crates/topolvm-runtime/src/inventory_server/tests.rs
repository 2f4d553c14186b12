//! Tests of who gets the lists.

use clap::Parser;
use rstest::rstest;
use tower::ServiceExt as _;

use super::*;
use crate::authorized_server::Authorization;

/// Knows a user who may get only the volumes.
struct Tokens;

impl Authorizer for Tokens {
    type Error = std::io::Error;

    async fn authorize(&self, token: &str, verb: &str, path: &str) -> Result<Authorization, std::io::Error> {
        Ok(match (token, verb, path) {
            ("reader", "get", "/volume") => Authorization::Allowed,
            ("reader", ..) => Authorization::Forbidden("a \"reader\"\n".to_owned()),
            ("unlucky", ..) => return Err(std::io::Error::other("the API server does not answer")),
            _ => Authorization::Unauthenticated,
        })
    }
}

struct Lists;

impl InventorySource for Lists {
    async fn answer(&self, list: InventoryList) -> Response {
        json(format!("[\"{}\"]", list.path()))
    }
}

async fn ask(method: &str, path: &str, token: &str) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path);
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = router(Lists, Tokens).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    assert_eq!(response.headers().contains_key(ALLOW), response.status() == StatusCode::METHOD_NOT_ALLOWED);
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[rstest]
#[case::allowed("GET", "/volume", "reader", StatusCode::OK, r#"["/volume"]"#)]
#[case::another_list("GET", "/devicegroup", "reader", StatusCode::FORBIDDEN, "bind a ClusterRole")]
#[case::no_credentials("GET", "/volume", "", StatusCode::UNAUTHORIZED, "send one with Authorization: Bearer")]
#[case::unknown("GET", "/volume", "made-up", StatusCode::UNAUTHORIZED, "rejected this token")]
#[case::unavailable("GET", "/volume", "unlucky", StatusCode::SERVICE_UNAVAILABLE, "try again")]
#[case::no_list("GET", "/", "reader", StatusCode::NOT_FOUND, "/devicegroup or /volume")]
#[case::below_a_list("GET", "/volume/x", "reader", StatusCode::NOT_FOUND, "/devicegroup or /volume")]
#[case::a_write("POST", "/volume", "reader", StatusCode::METHOD_NOT_ALLOWED, "use GET")]
#[case::another_method("DELETE", "/volume", "reader", StatusCode::METHOD_NOT_ALLOWED, "use GET")]
#[tokio::test]
async fn inventory_requires_permission_and_errors_name_the_fix(
    #[case] method: &str,
    #[case] path: &str,
    #[case] token: &str,
    #[case] status: StatusCode,
    #[case] words: &str,
) {
    let (answered, said) = ask(method, path, token).await;
    assert_eq!(answered, status);
    assert!(said.contains(words), "{said}");
    assert_eq!(said.starts_with("{\"error\":\""), status != StatusCode::OK, "{said}");
}

#[tokio::test]
async fn a_reason_is_quoted() {
    let (_, said) = ask("GET", "/devicegroup", "reader").await;
    assert!(said.starts_with(r#"{"error":"a \"reader\"\n may not get /devicegroup;"#), "{said}");
}

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    inventory: InventoryArgs,
}

#[rstest]
#[case(&[], None)]
#[case(&["--inventory-cert-dir=/c"], None)]
#[case(&["--inventory-bind-address=0"], None)]
#[case(&["--inventory-bind-address=:8443"], Some(CertificateSource::Own))]
#[case(&["--inventory-bind-address=:8443", "--inventory-cert-dir=/c"], Some(CertificateSource::Files("/c".into())))]
fn the_lists_are_off_unless_an_address_is_given(#[case] flags: &[&str], #[case] expected: Option<CertificateSource>) {
    let program = Program::try_parse_from([&["program"], flags].concat()).unwrap();
    assert_eq!(program.inventory.config().map(|config| config.certificate), expected);
}
