//! The clock of the API server, by which certificates are valid or not.

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;

/// Reads the time in an answer of the API server; none if the answer has no time.
pub(super) async fn read(client: &Client) -> Option<Timestamp> {
    let request = http::Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    parse(answer.headers().get(http::header::DATE)?.to_str().ok()?)
}

fn parse(date: &str) -> Option<Timestamp> {
    rfc2822::parse(date).ok().map(|date| date.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_of_http_is_a_time() {
        assert_eq!(parse("Thu, 01 Jan 2026 01:00:00 GMT"), Some(Timestamp::constant(1_767_229_200, 0)));
        assert_eq!(parse("yesterday"), None);
    }
}
