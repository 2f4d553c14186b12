//! Answers `GET /devicegroup` and `GET /volume` with the lists of all agents, by node. It queries the agents for each
//! answer, a few at a time and each for a few seconds; headers name the nodes whose list is missing.

mod agent;
mod answer;
mod args;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::InvalidHeaderValue;
use axum::http::{HeaderValue, StatusCode};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use topolvm_kube::{AgentPod, LogicalVolumes, list_in_pages};
use topolvm_runtime::error_chain;
use topolvm_runtime::inventory_server::{InventoryList, InventorySource, Response, refusal};
use topolvm_runtime::tls::{TlsClient, TlsClientError};

pub use args::AgentAccess;

use agent::Question;
use answer::Answer;

/// Name in the certificates of agents, where they are verified.
const AGENT_NAME: &str = "topolvm-node";
/// Agents that are asked at once.
const AT_ONCE: usize = 16;
/// Time after which no further agent is waited for.
const DEADLINE: Duration = Duration::from_mins(1);
/// Time for which a request waits for the answers that are being made.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers that are made or sent at once.
const MOST_ANSWERS: usize = 2;

/// Error for which no agent is asked.
#[derive(Debug, thiserror::Error)]
enum InventoryError {
    #[error("cannot read the token for agents; check --inventory-token-file")]
    Token(#[source] std::io::Error),
    #[error("the token for agents contains a line break; check --inventory-token-file")]
    TokenText(#[from] InvalidHeaderValue),
    #[error("cannot read the CA certificates of agents; check --inventory-agents-ca")]
    Authorities(#[source] std::io::Error),
    #[error("the CA certificates of agents are invalid; check --inventory-agents-ca")]
    Tls(#[from] TlsClientError),
    #[error("cannot list the pods of agents; allow list of pods in the role of the controller")]
    Api(#[from] kube::Error),
    #[error("no agent found; check that the DaemonSet topolvm-node has pods")]
    NoAgent,
}

/// The lists of all nodes.
#[derive(Clone, Debug)]
pub struct Inventory {
    access: AgentAccess,
    pods: Api<Pod>,
    volumes: LogicalVolumes,
    turns: Arc<Semaphore>,
}

impl Inventory {
    /// Makes the lists of the agents in a namespace. Nodes of `volumes` are to have an agent.
    pub fn new(access: AgentAccess, client: Client, namespace: &str, volumes: LogicalVolumes) -> Self {
        let turns = Arc::new(Semaphore::new(MOST_ANSWERS));
        Self { access, pods: Api::namespaced(client, namespace), volumes, turns }
    }

    async fn ask_all(&self, list: InventoryList) -> Result<Answer, InventoryError> {
        let question = Question { list, client: self.client().await?, token: self.token().await? };
        let nodes = self.nodes().await?;
        if nodes.is_empty() {
            return Err(InventoryError::NoAgent);
        }
        let end = Instant::now() + DEADLINE;
        let asking = nodes.into_iter().map(|(node, agent)| {
            let question = &question;
            async move { (node, question.ask(agent, end).await) }
        });
        let mut answers = stream::iter(asking).buffer_unordered(AT_ONCE);
        let mut answer = Answer::default();
        while let Some((node, found)) = answers.next().await {
            answer.add(node, found);
        }
        Ok(answer)
    }

    /// Lists the nodes that have an agent, or a volume and so should have one.
    async fn nodes(&self) -> Result<BTreeMap<String, Option<AgentPod>>, InventoryError> {
        let mut nodes: BTreeMap<_, _> =
            self.volumes.state().iter().map(|volume| (volume.spec.node_name.clone(), None)).collect();
        let mut pods = std::pin::pin!(list_in_pages(&self.pods, AgentPod::selection()));
        while let Some(pod) = pods.try_next().await? {
            let Some(agent) = AgentPod::of(pod) else { continue };
            // While one is replaced there may be two
            let known = nodes.entry(agent.node.clone()).or_default();
            if known.as_ref().is_none_or(|known: &AgentPod| !known.has_address()) {
                *known = Some(agent);
            }
        }
        Ok(nodes)
    }

    async fn client(&self) -> Result<TlsClient, InventoryError> {
        if self.access.inventory_agents_ca.is_empty() {
            return Ok(TlsClient::verifying_nothing(AGENT_NAME)?);
        }
        let pem = tokio::fs::read(&self.access.inventory_agents_ca).await.map_err(InventoryError::Authorities)?;
        Ok(TlsClient::verifying(AGENT_NAME, &pem)?)
    }

    /// Reads the token, which kubelet renews.
    async fn token(&self) -> Result<HeaderValue, InventoryError> {
        let token =
            tokio::fs::read_to_string(&self.access.inventory_token_file).await.map_err(InventoryError::Token)?;
        let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
        header.set_sensitive(true);
        Ok(header)
    }
}

impl InventorySource for Inventory {
    async fn answer(&self, list: InventoryList) -> Response {
        let Ok(Ok(turn)) = timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await else {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent requests; try again");
        };
        match self.ask_all(list).await {
            Ok(answer) => answer.response(turn),
            Err(error) => {
                let reason = error_chain(&error);
                tracing::warn!(error = reason, list = list.path(), "cannot request the lists of the agents");
                refusal(StatusCode::SERVICE_UNAVAILABLE, &reason)
            }
        }
    }
}

#[cfg(test)]
mod tests;
