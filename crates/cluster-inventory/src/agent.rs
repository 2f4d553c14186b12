//! Asks one agent for a list.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderValue, Request, StatusCode, Uri};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use topolvm_kube::AgentPod;
use topolvm_runtime::http_client::{RequestError, send};
use topolvm_runtime::inventory_server::InventoryList;
use topolvm_runtime::tls::TlsClient;

/// Name of the agent's port for lists.
const PORT: &str = "inventory";
/// Time for an agent to answer.
const DEADLINE: Duration = Duration::from_secs(3);
/// Longest list of an agent, in bytes: that of some four thousand volumes.
const LONGEST: usize = 2 << 20;
/// Longest reason of an agent that is passed on, in characters.
const LONGEST_REASON: usize = 200;

/// The reason why there is no list of a node.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("topolvm-node does not run on this node; check why its pod does not start")]
    NoPod,
    #[error("the agent has no port named {PORT}, or no address yet; check --inventory-bind-address of topolvm-node")]
    NoPort,
    #[error("the agent is not reachable; check that it runs, and that no NetworkPolicy blocks the controller")]
    Connect(#[source] io::Error),
    #[error(
        "the TLS handshake with the agent failed; check --inventory-agents-ca, and --inventory-cert-dir of topolvm-node"
    )]
    Tls(#[source] io::Error),
    #[error("the agent sent an invalid response; check its log")]
    Request(#[from] RequestError),
    #[error("the agent returned {0}: {1}")]
    Status(StatusCode, String),
    #[error("the agent did not return a list; check its version")]
    NotAList,
    #[error("the lists of all nodes are too long for one response; query the agent of this node directly")]
    TooLong,
    #[error("the agent did not answer in time; check that no NetworkPolicy blocks the controller")]
    Slow,
}

/// A question to all agents.
pub(super) struct Question {
    pub(super) list: InventoryList,
    pub(super) client: TlsClient,
    /// The value of the header Authorization.
    pub(super) token: HeaderValue,
}

/// Refusal of an agent.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Question {
    /// Returns the list of an agent, an array in JSON. It has to come before `end`.
    pub(super) async fn ask(&self, agent: Option<AgentPod>, end: Instant) -> Result<Bytes, AskError> {
        let address = agent.ok_or(AskError::NoPod)?.address(PORT).ok_or(AskError::NoPort)?;
        let end = end.min(Instant::now() + DEADLINE);
        timeout_at(end, self.get(&address)).await.unwrap_or(Err(AskError::Slow))
    }

    async fn get(&self, address: &str) -> Result<Bytes, AskError> {
        let stream = TcpStream::connect(address).await.map_err(AskError::Connect)?;
        let stream = self.client.connect(stream).await.map_err(AskError::Tls)?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = Uri::from_static(self.list.path());
        request.headers_mut().insert(AUTHORIZATION, self.token.clone());
        if let Ok(host) = HeaderValue::from_str(address) {
            request.headers_mut().insert(HOST, host);
        }
        let (status, body) = send(stream, request, LONGEST).await?;
        if status != StatusCode::OK {
            let message = serde_json::from_slice(&body).map(|Refusal { error }| error).unwrap_or_default();
            return Err(AskError::Status(status, message.chars().take(LONGEST_REASON).collect()));
        }
        // It becomes a part of an answer of ours
        let is_list =
            std::str::from_utf8(&body).is_ok_and(|text| serde_json::from_str::<Vec<IgnoredAny>>(text).is_ok());
        if is_list { Ok(body) } else { Err(AskError::NotAList) }
    }
}
