//! Sends lvmd the labels of the Node, for disk groups that are for some nodes only.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use lvmd_client::LvmdClient;
use tokio::sync::watch;
use topolvm_runtime::{Backoff, error_chain};

pub(crate) type NodeMetadata = PartialObjectMeta<Node>;

/// Back-off of calls that fail although lvmd is running.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_mins(1));

/// Sends the labels to an lvmd that has received none yet, and again when they change. It sends all labels: a Node has
/// few, and which of them matter changes with the configuration of lvmd. An lvmd that does not implement the call gets
/// no further calls.
pub(crate) async fn send_labels(lvmd: &LvmdClient, mut nodes: watch::Receiver<Option<NodeMetadata>>) -> Infallible {
    let (mut sent, mut backoff, mut is_logged) = (None, RETRY, false);
    loop {
        // Without a Node the labels are unknown, which differs from having none
        let labels = nodes.borrow_and_update().as_ref().map(labels_of);
        let mut pause = None;
        if let Some(labels) = labels.filter(|labels| sent.as_ref() != Some(labels)) {
            match lvmd.set_node_labels(&labels).await {
                Ok(()) => {
                    sent = Some(labels);
                    backoff.reset();
                    is_logged = false;
                }
                Err(error) if error.is_unimplemented() => return std::future::pending().await,
                Err(error) => {
                    if !std::mem::replace(&mut is_logged, true) && !error.is_transient() {
                        let error = error_chain(&error);
                        tracing::warn!(error, "cannot send the labels of the node to lvmd; trying again");
                    }
                    pause = Some(backoff.fail());
                }
            }
        }
        wait_for_change(&mut nodes, pause).await;
    }
}

fn labels_of(node: &NodeMetadata) -> BTreeMap<String, String> {
    node.metadata.labels.clone().unwrap_or_default()
}

/// Waits until the Node changes, or for `pause`.
async fn wait_for_change(nodes: &mut watch::Receiver<Option<NodeMetadata>>, pause: Option<Duration>) {
    let changed = async {
        if nodes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    match pause {
        // That the time has come is no error
        Some(pause) => drop(tokio::time::timeout(pause, changed).await),
        None => changed.await,
    }
}
