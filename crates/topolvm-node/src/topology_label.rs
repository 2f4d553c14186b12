//! Keeps the topology label of this node's Node object at the node's name.
//!
//! The kubelet sets the label when it registers the driver and never corrects it: while the label has another value, as
//! from the template of a node pool, the kubelet refuses the driver, and kube-scheduler sends pods with volumes of
//! another node here.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::PatchParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use topolvm_api::{ApiFlavor, NodeSelection, NodeState};
use topolvm_kube::api_server::{self, ApiError};
use topolvm_kube::{json_patch, node_reference, set_label};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use crate::events::Events;

type NodeMetadata = PartialObjectMeta<Node>;

/// Pauses between attempts, and between corrections: another controller may write the wrong value again and again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_mins(1));
/// Time without a write after which pauses are short again.
const SETTLED: Duration = Duration::from_mins(5);
/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);

/// The topology label of a node.
#[derive(Clone)]
pub struct TopologyLabel {
    flavor: ApiFlavor,
    node: String,
    selection: NodeSelection,
    client: Client,
    events: Events,
}

impl fmt::Debug for TopologyLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopologyLabel").field("node", &self.node).finish_non_exhaustive()
    }
}

impl TopologyLabel {
    /// Makes the keeper of the label of `node`, which writes to no Node that `selection` excludes.
    pub fn new(flavor: ApiFlavor, node: String, selection: NodeSelection, client: Client) -> Self {
        let events = Events::new(flavor, &node, client.clone());
        Self { flavor, node, selection, client, events }
    }

    /// Corrects the label whenever the Node changes, until `shutdown` is cancelled.
    pub async fn run(
        self,
        nodes: watch::Receiver<Option<NodeMetadata>>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        Box::pin(shutdown.run_until_cancelled(self.keep_correct(nodes))).await;
        Ok(())
    }

    async fn keep_correct(self, mut nodes: watch::Receiver<Option<NodeMetadata>>) {
        let (mut pauses, mut written) = (PAUSES, None::<Instant>);
        loop {
            let node = nodes.borrow_and_update().clone();
            let is_to_check = match &node {
                Some(node) => self.correct(node).await,
                None => false,
            };
            if is_to_check {
                if written.is_some_and(|written| written.elapsed() > SETTLED) {
                    pauses.reset();
                }
                written = Some(Instant::now());
                sleep(pauses.fail()).await;
            } else if nodes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Corrects the label of the Node. Returns true if it needs another check soon: it was wrong, or is unknown.
    async fn correct(&self, node: &NodeMetadata) -> bool {
        let (name, key) = (&self.node, self.flavor.topology_key());
        let fault = match self.find_fault(node) {
            None => return false,
            Some(Fault::Value(value)) => format!("was {value:?}"),
            Some(Fault::Missing) => match self.is_registered().await {
                // The kubelet sets it when it registers the driver
                Ok(false) => return false,
                Ok(true) => "was missing".to_owned(),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(
                        node = name,
                        error,
                        "the Node has no label {key}, and its CSINode, which shows whether the kubelet has registered \
                         the driver, cannot be read; retrying"
                    );
                    return true;
                }
            },
        };
        let reference = node_reference(node);
        match self.set(node).await {
            Ok(()) => {
                let message = format!(
                    "the label {key} {fault}; topolvm-node set it to {name:?}, the name of the Node, because pods are \
                     otherwise scheduled to nodes that do not have their volumes. Remove the label from its source, \
                     such as the template of a node pool"
                );
                tracing::warn!(node = name, "{message}");
                self.events.topology_label_corrected(&reference, &message).await;
            }
            Err(error) => {
                let error = error_chain(&error);
                let message = format!(
                    "the label {key} {fault}, must be {name:?}, and cannot be corrected ({error}); run kubectl label \
                     node {name} {key}={name} --overwrite"
                );
                tracing::warn!(node = name, "{message}");
                self.events.topology_label_wrong(&reference, &message).await;
            }
        }
        true
    }

    /// Returns the fault of the label. A Node that is being deleted, and one without storage, are none of ours.
    fn find_fault(&self, node: &NodeMetadata) -> Option<Fault> {
        let labels = node.metadata.labels.as_ref();
        if node.metadata.deletion_timestamp.is_some() || self.selection.state(labels) == NodeState::Excluded {
            return None;
        }
        match labels.and_then(|labels| labels.get(self.flavor.topology_key())) {
            None => Some(Fault::Missing),
            Some(value) => (*value != self.node).then(|| Fault::Value(value.clone())),
        }
    }

    /// Returns whether the kubelet has registered the driver with this topology.
    async fn is_registered(&self) -> Result<bool, ApiError> {
        let api: Api<CSINode> = Api::all(self.client.clone());
        let found = api_server::call(DEADLINE, api.get_opt(&self.node)).await?;
        let (driver, key) = (self.flavor.driver_name(), self.flavor.topology_key());
        Ok(found.is_some_and(|found| {
            found
                .spec
                .drivers
                .iter()
                .any(|one| one.name == driver && one.topology_keys.iter().flatten().any(|announced| announced == key))
        }))
    }

    async fn set(&self, node: &NodeMetadata) -> Result<(), ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json_patch(set_label(&node.metadata, self.flavor.topology_key(), &self.node));
        let parameters = PatchParams::default();
        api_server::call(DEADLINE, api.patch_metadata(&self.node, &parameters, &patch)).await.map(drop)
    }
}

/// A fault of the label.
enum Fault {
    /// The Node does not have the label.
    Missing,
    /// It has another value.
    Value(String),
}
