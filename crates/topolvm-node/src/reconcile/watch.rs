//! Watches the LogicalVolumes of this node.

use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use topolvm_api::LogicalVolume;
use topolvm_kube::{LogicalVolumeWriter, node_selection, watch_selected};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

/// Returns the selection of this node's objects, or of all if the server cannot select by `spec.nodeName` (selectable
/// fields of a CRD: Kubernetes 1.31, and a CRD that has them). Retries with back-off until it knows.
pub(super) async fn choose_selection(api: &Api<LogicalVolume>, node: &str, mut backoff: Backoff) -> watcher::Config {
    loop {
        match node_selection(api, node).await {
            Ok(Some(selection)) => return selection,
            Ok(None) => {
                tracing::warn!(
                    "the API server cannot select LogicalVolumes by node, so topolvm-node receives those of all nodes; \
                     install the current CustomResourceDefinition on Kubernetes 1.31 or later"
                );
                return watcher::Config::default();
            }
            Err(error) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot list LogicalVolumes; check that the CustomResourceDefinition and the ClusterRole of \
                     topolvm-node are installed; retrying"
                );
                tokio::time::sleep(backoff.fail()).await;
            }
        }
    }
}

/// Caches the objects of this node with `writer`, and sends the name of each to `changed` after its change: all of
/// them when they were listed. Ends with `shutdown`.
pub(super) async fn follow(
    api: Api<LogicalVolume>,
    selection: watcher::Config,
    node: &str,
    mut writer: LogicalVolumeWriter,
    changed: mpsc::UnboundedSender<String>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    watch_selected("LogicalVolumes", api, selection, shutdown, move |event| {
        if !is_of_node(&event, node) {
            return;
        }
        for name in writer.apply(event) {
            // The receiver is dropped only at shutdown
            drop(changed.send(name));
        }
    })
    .await
}

/// Returns whether an event is about an object of this node, or about the whole list.
fn is_of_node(event: &Event<LogicalVolume>, node: &str) -> bool {
    match event {
        Event::Apply(volume) | Event::InitApply(volume) | Event::Delete(volume) => volume.spec.node_name == node,
        Event::Init | Event::InitDone => true,
    }
}
