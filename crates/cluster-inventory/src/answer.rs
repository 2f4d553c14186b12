//! The answer: an object with the list of each node that has returned one. An old client reads nothing else of it, so
//! that the errors of other nodes are in headers.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use futures::stream;
use tokio::sync::OwnedSemaphorePermit;
use topolvm_runtime::error_chain;
use topolvm_runtime::inventory_server::{Response, json, refusal};

use super::agent::AskError;

/// Header with the number of nodes whose list is missing.
const FAILED: HeaderName = HeaderName::from_static("x-topolvm-failed-nodes");
/// Header with an object in JSON that has the reasons by node, as many as fit.
const ERRORS: HeaderName = HeaderName::from_static("x-topolvm-errors");
/// Longest value of it in bytes: proxies take 8 KiB of headers, all together.
const LONGEST_ERRORS: usize = 4 << 10;
/// Longest answer in bytes.
const LONGEST: usize = 32 << 20;

/// The lists that agents have returned.
#[derive(Default)]
pub(super) struct Answer {
    lists: Vec<(String, Bytes)>,
    bytes: usize,
    errors: Vec<(String, AskError)>,
}

impl Answer {
    /// Adds the answer of a node's agent.
    pub(super) fn add(&mut self, node: String, list: Result<Bytes, AskError>) {
        match list {
            Ok(list) if self.bytes.saturating_add(list.len()) > LONGEST => self.errors.push((node, AskError::TooLong)),
            Ok(list) => {
                self.bytes = self.bytes.saturating_add(list.len());
                self.lists.push((node, list));
            }
            Err(error) => self.errors.push((node, error)),
        }
    }

    /// Returns the response. `turn` ends when its last list is being sent.
    pub(super) fn response(mut self, turn: OwnedSemaphorePermit) -> Response {
        self.errors.sort_by(|(one, _), (other, _)| one.cmp(other));
        self.lists.sort_by(|(one, _), (other, _)| one.cmp(other));
        let headers = self.headers();
        let mut response = if self.lists.is_empty() {
            let reasons = self.errors.first().map(|(node, error)| format!("{node}: {}", error_chain(error)));
            let reason = format!("no agent returned its list; {}", reasons.unwrap_or_default());
            refusal(StatusCode::BAD_GATEWAY, &reason)
        } else {
            let last = self.lists.len().saturating_sub(1);
            let parts = self.lists.into_iter().enumerate().flat_map(move |(index, (node, list))| {
                let name = format!("{}{}:", if index == 0 { "{" } else { "," }, quote(&node));
                [Bytes::from(name), list].into_iter().chain((index == last).then_some(Bytes::from_static(b"}\n")))
            });
            json(Body::from_stream(stream::iter(parts.map(move |part| {
                let _lasting = &turn;
                Ok::<_, Infallible>(part)
            }))))
        };
        response.headers_mut().extend(headers);
        response
    }

    /// Returns the headers about nodes whose list is missing, and logs them.
    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(FAILED, HeaderValue::from(self.errors.len()));
        let Some((node, error)) = self.errors.first() else { return headers };
        tracing::warn!(
            nodes = self.errors.len(),
            node,
            error = error_chain(error),
            "some agents did not return their lists"
        );
        let mut reasons = String::new();
        for (node, error) in &self.errors {
            let begin = if reasons.is_empty() { "{" } else { "," };
            let reason = format!("{begin}{}:{}", quote(node), quote(&error_chain(error)));
            if reasons.len().saturating_add(reason.len()) >= LONGEST_ERRORS {
                break;
            }
            reasons.push_str(&reason);
        }
        reasons.push('}');
        headers.extend(HeaderValue::from_bytes(reasons.as_bytes()).ok().map(|reasons| (ERRORS, reasons)));
        headers
    }
}

/// Writes a text as a string of JSON.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tokio::sync::Semaphore;

    use super::*;

    /// Receives an answer as a client does: status, number of failed nodes, reasons, body.
    async fn received(answer: Answer) -> (StatusCode, String, Value, Value) {
        let turns = Arc::new(Semaphore::new(1));
        let response = answer.response(Arc::clone(&turns).acquire_owned().await.unwrap());
        let header = |name: HeaderName| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (status, failed) = (response.status(), header(FAILED).unwrap());
        let errors = header(ERRORS);
        assert!(errors.as_ref().is_none_or(|errors| errors.len() <= LONGEST_ERRORS));
        let errors = errors.map_or(Value::Null, |errors| serde_json::from_str(&errors).unwrap());
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert_eq!(turns.available_permits(), 1, "the next request waits forever");
        (status, failed, errors, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn inventory_has_lists_in_the_body_and_errors_in_headers() {
        let mut answer = Answer::default();
        answer.add("n2".to_owned(), Ok(Bytes::from_static(b"[]")));
        answer.add("n3".to_owned(), Err(AskError::NoPod));
        answer.add("n1".to_owned(), Ok(Bytes::from_static(b"[{\"a\":1}]")));
        let (status, failed, errors, body) = received(answer).await;
        assert_eq!((status, failed.as_str()), (StatusCode::OK, "1"));
        assert_eq!(errors, json!({"n3": AskError::NoPod.to_string()}));
        assert_eq!(body, json!({"n1": [{"a": 1}], "n2": []}));
    }

    #[tokio::test]
    async fn an_answer_of_all_nodes_has_no_errors() {
        let mut answer = Answer::default();
        answer.add("n1".to_owned(), Ok(Bytes::from_static(b"[]")));
        assert_eq!(received(answer).await, (StatusCode::OK, "0".to_owned(), Value::Null, json!({"n1": []})));
    }

    #[tokio::test]
    async fn an_answer_without_any_list_is_an_error() {
        let mut answer = Answer::default();
        for node in 0..1000 {
            answer.add(format!("node-{node:04}"), Err(AskError::Slow));
        }
        let (status, failed, errors, body) = received(answer).await;
        assert_eq!((status, failed.as_str()), (StatusCode::BAD_GATEWAY, "1000"));
        assert!(errors["node-0000"].is_string() && errors["node-0999"].is_null(), "{errors}");
        assert!(body["error"].as_str().unwrap().contains("node-0000: the agent did not answer"), "{body}");
    }

    #[tokio::test]
    async fn an_answer_has_an_end() {
        let mut answer = Answer::default();
        let large = Bytes::from([b"[", &vec![b' '; LONGEST - 4][..], b"]"].concat());
        answer.add("n1".to_owned(), Ok(large.clone()));
        answer.add("n2".to_owned(), Ok(large));
        answer.add("n3".to_owned(), Ok(Bytes::from_static(b"[]")));
        let (_, _, errors, body) = received(answer).await;
        assert_eq!(errors, json!({"n2": AskError::TooLong.to_string()}));
        assert_eq!(body, json!({"n1": [], "n3": []}));
    }
}
