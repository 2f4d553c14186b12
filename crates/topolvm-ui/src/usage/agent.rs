//! Asks the agent of a node for its metrics.

use std::io;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::net::TcpStream;
use tokio::time::timeout;
use topolvm_kube::AgentPod;
use topolvm_runtime::http_client::{self, RequestError};
use topolvm_runtime::http_server::BodyError;

/// Name of the agent's port for metrics.
const PORT: &str = "metrics";
/// Flag with which an agent serves its metrics only to clients that the API server authorizes.
const SECURE: &str = "--secure-metrics-server";
/// Time for an agent to answer, the search for its pod included.
const DEADLINE: Duration = Duration::from_secs(3);
/// Longest metrics that are read, in bytes.
const LONGEST: usize = 8 << 20;

/// The reason why an agent returns nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    #[error("topolvm-node does not run on this node; check why its pod does not start")]
    NoPod,
    #[error("the agent has no port named {PORT}; check --metrics-bind-address")]
    NoPort,
    // A token that may change volumes is not sent to an address with a self-signed certificate
    #[error("the agent requires a token for its metrics ({SECURE}), which this page does not have")]
    Secure,
    #[error("cannot list the pod of the agent; allow list of pods in its namespace in the role of the controller")]
    Api(#[from] kube::Error),
    #[error("the agent is not reachable; check that no NetworkPolicy blocks the controller")]
    Connect(#[from] io::Error),
    #[error("the process on port {PORT} of the agent does not speak HTTP; check --metrics-bind-address")]
    Http(#[source] RequestError),
    #[error("the agent returned {0}; check its log")]
    Status(StatusCode),
    #[error("cannot parse the metrics of the agent; check its /metrics")]
    Body(#[source] BodyError),
    #[error(
        "the agent did not answer within {} s; check that no NetworkPolicy blocks the controller",
        DEADLINE.as_secs()
    )]
    Slow,
}

/// The agents of a cluster.
pub(super) struct Agents {
    pods: Api<Pod>,
}

impl Agents {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { pods: Api::namespaced(client, namespace) }
    }

    /// Returns the present metrics of the agent of a node.
    pub(super) async fn read_metrics(&self, node: &str) -> Result<String, AgentError> {
        let reading = async {
            let address = self.find_address(node).await?;
            get_metrics(&address).await
        };
        timeout(DEADLINE, reading).await.unwrap_or(Err(AgentError::Slow))
    }

    /// Returns address and port of the agent's metrics.
    async fn find_address(&self, node: &str) -> Result<String, AgentError> {
        let agent = AgentPod::of_node(&self.pods, node).await?.ok_or(AgentError::NoPod)?;
        if matches!(agent.flag(SECURE), Some("" | "true")) {
            return Err(AgentError::Secure);
        }
        agent.address(PORT).ok_or(AgentError::NoPort)
    }
}

/// Returns the metrics that are served at an address.
async fn get_metrics(address: &str) -> Result<String, AgentError> {
    let stream = TcpStream::connect(address).await?;
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = http::Uri::from_static("/metrics");
    if let Ok(host) = header::HeaderValue::from_str(address) {
        request.headers_mut().insert(header::HOST, host);
    }
    match http_client::send(stream, request, LONGEST).await {
        Ok((StatusCode::OK, page)) => Ok(String::from_utf8_lossy(&page).into_owned()),
        Ok((status, _)) => Err(AgentError::Status(status)),
        Err(RequestError::Body(error)) => Err(AgentError::Body(error)),
        Err(error) => Err(AgentError::Http(error)),
    }
}
