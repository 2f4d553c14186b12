//! Access to the answers: for the page itself, and not for pages of other web sites.
//!
//! The page has no login, as only users who can forward a port to the pod reach it. The threat is foreign web pages in
//! the browser of such a user: by DNS rebinding, where a foreign name leads to 127.0.0.1, and by requests across
//! origins.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};

/// Headers of every answer. Nothing is loaded or run that does not come from here, no text becomes HTML, and no other
/// page may show this one in a frame.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Refuses requests that only a foreign web page would send, and sets the headers of every answer.
pub(crate) async fn check(request: Request, next: Next) -> Response<Body> {
    let mut response = match refusal(request.method(), request.headers()) {
        Some((status, reason)) => {
            let mut response = Response::new(Body::from(reason));
            *response.status_mut() = status;
            response
        }
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal(method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    if method != Method::GET {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "this page is read-only: only GET is allowed\n"));
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if !text("host").is_some_and(is_loopback) {
        let reason = "open this page as localhost or 127.0.0.1, as `kubectl topolvm ui` does\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, reason));
    }
    // Browsers report the origin of a request; a link to this page is no harm
    let is_foreign = matches!(text("sec-fetch-site"), Some("cross-site" | "same-site"));
    if is_foreign && text("sec-fetch-mode") != Some("navigate") {
        return Some((StatusCode::FORBIDDEN, "other web sites may not read this page\n"));
    }
    None
}

/// Returns whether a Host header names this machine, with any port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(address, _)| address),
        None => host.split(':').next(),
    };
    name.is_some_and(|name| name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "::1")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("localhost", true)]
    #[case("LOCALHOST:8082", true)]
    #[case("127.0.0.1:41234", true)]
    #[case("[::1]:8082", true)]
    #[case("[::1]", true)]
    #[case("", false)]
    #[case("evil.example", false)]
    #[case("evil.example:8082", false)]
    #[case("localhost.evil.example:8082", false)]
    #[case("127.0.0.1.evil.example", false)]
    #[case("[::2]:8082", false)]
    #[case("10.0.0.7:8082", false)]
    fn only_names_of_this_machine_are_answered(#[case] host: &str, #[case] is_ours: bool) {
        assert_eq!(is_loopback(host), is_ours);
    }
}
