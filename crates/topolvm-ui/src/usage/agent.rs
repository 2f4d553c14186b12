//! Asks the agent of a node for its metrics.

use std::io;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::net::TcpStream;
use tokio::time::timeout;
use topolvm_runtime::http_server::{BodyError, read_body};

/// Name of the agent's container, and of its port for metrics.
const CONTAINER: &str = "topolvm-node";
const PORT: &str = "metrics";
/// Flag with which an agent tells its metrics to those alone whom the API server lets in.
const SECURE: &str = "--secure-metrics-server";
/// Time for an agent to answer, the search for its pod included.
const DEADLINE: Duration = Duration::from_secs(3);
/// Longest metrics that are read, in bytes.
const LONGEST: usize = 8 << 20;

/// The reason why an agent says nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    #[error("no topolvm-node runs on this node; see why its pod does not start")]
    NoPod,
    #[error("the agent has no port named {PORT}; see --metrics-bind-address")]
    NoPort,
    // A token that may change volumes goes to no address whose certificate nobody has signed
    #[error("the agent gives its metrics ({SECURE}) to those alone who send a token, which this page does not")]
    Secure,
    #[error(
        "the API server does not list the pod of the agent; see that the controller may list pods in its namespace"
    )]
    Api(#[from] kube::Error),
    #[error("the agent cannot be reached; see that no NetworkPolicy keeps the controller away")]
    Connect(#[from] io::Error),
    #[error("what listens on the port {PORT} of the agent does not speak HTTP; see --metrics-bind-address")]
    Http(#[from] hyper::Error),
    #[error("the agent refused with {0}; see its log")]
    Status(StatusCode),
    #[error("what the agent says cannot be read; see its /metrics")]
    Body(#[from] BodyError),
    #[error(
        "the agent did not answer within {} s; see that no NetworkPolicy keeps the controller away",
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

    /// Returns the metrics of the agent of a node as it tells them now.
    pub(super) async fn read_metrics(&self, node: &str) -> Result<String, AgentError> {
        let reading = async {
            let address = self.find_address(node).await?;
            get_metrics(&address).await
        };
        timeout(DEADLINE, reading).await.unwrap_or(Err(AgentError::Slow))
    }

    /// Returns address and port of the agent's metrics.
    async fn find_address(&self, node: &str) -> Result<String, AgentError> {
        let on_node = format!("spec.nodeName={node}");
        let params = ListParams::default().labels("app.kubernetes.io/component=node").fields(&on_node);
        let pods = self.pods.list(&params).await?;
        let mut running = pods.items.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let found = running.find_map(|pod| {
            let ip = pod.status.as_ref()?.pod_ip.as_deref()?;
            Some((ip, agent_container(pod)?))
        });
        let (ip, container) = found.ok_or(AgentError::NoPod)?;
        if is_secure(container) {
            return Err(AgentError::Secure);
        }
        let mut ports = container.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref() == Some(PORT)).ok_or(AgentError::NoPort)?.container_port;
        Ok(if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") })
    }
}

fn agent_container(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == CONTAINER)
}

fn is_secure(container: &Container) -> bool {
    let arguments = container.command.iter().flatten().chain(container.args.iter().flatten());
    let mut flags = arguments.filter_map(|argument| argument.strip_prefix(SECURE));
    flags.next_back().is_some_and(|value| matches!(value, "" | "=true"))
}

/// Returns the metrics that are served at an address.
async fn get_metrics(address: &str) -> Result<String, AgentError> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asking = async move {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = http::Uri::from_static("/metrics");
        if let Ok(host) = header::HeaderValue::from_str(address) {
            request.headers_mut().insert(header::HOST, host);
        }
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(AgentError::Status(response.status()));
        }
        let page = read_body(Body::new(response.into_body()), LONGEST).await?;
        // The connection ends with the sender
        Ok(String::from_utf8_lossy(&page).into_owned())
    };
    let (page, _ended) = tokio::join!(asking, connection);
    page
}
