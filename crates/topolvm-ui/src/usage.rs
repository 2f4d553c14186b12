//! The answer of `/api/usage`: pods, used bytes and I/O of volumes, as the agents of their nodes report them now.
//!
//! The agents are queried when a viewer opens a volume of their node, a few at a time, and their answers are kept for a
//! few seconds. Without viewers nothing is kept.

mod agent;
mod series;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use topolvm_runtime::error_chain;

use agent::Agents;
use series::VolumeUsage;

/// Volumes of a request at most.
pub(crate) const MOST_VOLUMES: usize = 200;
/// Agents that are asked at once.
const AT_ONCE: usize = 8;
/// Time for which an answer of an agent is kept.
const KEPT: Duration = Duration::from_secs(4);

/// The usage of volumes by their names, as an agent reports it, or the reason why it does not.
type NodeUsage = Result<HashMap<String, VolumeUsage>, String>;

/// Usage of volumes, with the agents' answers of the last seconds.
pub(crate) struct Usage {
    agents: Agents,
    permits: Semaphore,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Number of browsers that have the page open.
    viewers: usize,
    /// By node.
    kept: HashMap<String, (Instant, Arc<NodeUsage>)>,
}

/// A viewer; dropped when the browser has disconnected.
pub(crate) struct Viewer(Arc<Usage>);

/// Usage of volumes by their names.
#[derive(Debug, Default, Serialize)]
pub(crate) struct UsageAnswer {
    volumes: BTreeMap<String, VolumeUsage>,
    /// Reasons why nothing is known, by node.
    unknown: BTreeMap<String, String>,
}

impl Usage {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        let agents = Agents::new(client, namespace);
        Self { agents, permits: Semaphore::new(AT_ONCE), shared: Mutex::default() }
    }

    /// Counts a viewer.
    pub(crate) fn view(self: &Arc<Self>) -> Viewer {
        self.shared.lock().viewers += 1;
        Viewer(Arc::clone(self))
    }

    /// Returns the usage of volumes, each given with its node.
    pub(crate) async fn of_volumes(&self, volumes: Vec<(String, String)>, now: Timestamp) -> UsageAnswer {
        let nodes: BTreeSet<String> = volumes.iter().map(|(_, node)| node.clone()).collect();
        let asking = nodes.into_iter().map(|node| async move {
            let usage = self.of_node(&node, now).await;
            (node, usage)
        });
        let known: HashMap<_, _> = stream::iter(asking).buffer_unordered(AT_ONCE).collect().await;
        let mut answer = UsageAnswer::default();
        for (volume, node) in volumes {
            match known.get(&node).map(|usage| &**usage) {
                Some(Ok(usage)) => answer.volumes.extend(usage.get(&volume).map(|usage| (volume, usage.clone()))),
                Some(Err(reason)) => drop(answer.unknown.insert(node, reason.clone())),
                None => {}
            }
        }
        answer
    }

    /// Returns the answer of a node's agent, from now or from the last seconds.
    async fn of_node(&self, node: &str, now: Timestamp) -> Arc<NodeUsage> {
        if let Some(kept) = self.shared.lock().find(node) {
            return kept;
        }
        // Never closed
        let _permit = self.permits.acquire().await.ok();
        let asked = self.agents.read_metrics(node).await;
        let usage = asked.map(|text| series::parse(&text, now)).map_err(|error| error_chain(&error));
        let usage = Arc::new(usage);
        self.shared.lock().keep(node, &usage);
        usage
    }
}

impl Shared {
    fn find(&mut self, node: &str) -> Option<Arc<NodeUsage>> {
        self.kept.retain(|_, (since, _)| since.elapsed() < KEPT);
        self.kept.get(node).map(|(_, usage)| Arc::clone(usage))
    }

    fn keep(&mut self, node: &str, usage: &Arc<NodeUsage>) {
        if self.viewers > 0 {
            self.kept.insert(node.to_owned(), (Instant::now(), Arc::clone(usage)));
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut shared = self.0.shared.lock();
        shared.viewers = shared.viewers.saturating_sub(1);
        if shared.viewers == 0 {
            shared.kept = HashMap::new();
        }
    }
}

impl std::fmt::Debug for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Usage").field("viewers", &self.shared.lock().viewers).finish_non_exhaustive()
    }
}
