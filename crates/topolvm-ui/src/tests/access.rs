//! Access: hosts and sites that are answered, and with which headers.

use axum::body::Body;
use http::{Request, StatusCode};
use tower::ServiceExt as _;

use super::harness::{Harness, text};
use crate::files::FILES;

#[rstest::rstest]
#[case::a_browser_of_this_machine(&[("host", "localhost:8082"), ("sec-fetch-site", "same-origin")], 200)]
#[case::a_program(&[("host", "127.0.0.1:8082")], 200)]
#[case::an_address_that_is_typed(&[("host", "[::1]:8082"), ("sec-fetch-site", "none")], 200)]
#[case::a_link_of_another_site(
    &[("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], 200)]
#[case::a_script_of_another_site(
    &[("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], 403)]
#[case::a_script_of_another_port(
    &[("host", "localhost"), ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")], 403)]
#[case::a_name_that_leads_here(&[("host", "evil.example:8082"), ("sec-fetch-site", "same-origin")], 421)]
#[case::no_name(&[], 421)]
#[tokio::test]
async fn scripts_of_other_sites_and_foreign_hosts_are_refused(#[case] headers: &[(&str, &str)], #[case] status: u16) {
    let harness = Harness::new(Vec::new(), Vec::new());
    for path in ["/", "/api/summary", "/api/volumes", "/api/usage", "/api/events"] {
        assert_eq!(harness.send_with(path, headers).await.status(), status, "{path}");
    }
}

#[tokio::test]
async fn every_answer_forbids_what_is_not_of_this_page() {
    let harness = Harness::new(Vec::new(), Vec::new());
    for path in ["/", "/page.js", "/api/summary", "/nothing"] {
        let answer = harness.send(path).await;
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!((header("x-content-type-options"), header("cache-control")), ("nosniff".into(), "no-store".into()));
        assert!(answer.headers().keys().all(|name| !name.as_str().starts_with("access-control-")), "{path}");
    }
}

#[tokio::test]
async fn nothing_can_be_changed() {
    let harness = Harness::new(Vec::new(), Vec::new());
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
        let request = Request::builder().method(method).uri("/api/summary").header("host", "localhost");
        let answer = harness.page.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
    }
}

#[tokio::test]
async fn the_page_makes_no_html_of_text_and_has_no_script_in_it() {
    let harness = Harness::new(Vec::new(), Vec::new());
    for file in &FILES {
        let answer = harness.send(file.path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{}", file.path);
        let content = text(answer).await;
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\"", "//cdn"]
        {
            assert!(!content.contains(forbidden), "{} has {forbidden}", file.path);
        }
        let scripts = content.matches("<script").count();
        assert_eq!(scripts, content.matches("<script type=\"module\" src=\"/page.js\"></script>").count());
    }
}
