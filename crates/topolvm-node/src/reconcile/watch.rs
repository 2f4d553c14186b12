//! Watches the LogicalVolumes of this node only.

use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use topolvm_api::LogicalVolume;
use topolvm_kube::{LogicalVolumeWriter, can_select, watch_selected};
use topolvm_runtime::{CancellationToken, error_chain};

/// Who picks this node's objects out of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// The API server, by this field selector.
    Server(String),
    /// We; the server does not know the field.
    Client,
}

/// Finds out whether the server can select by `spec.nodeName` (selectable fields of a CRD: Kubernetes 1.32, or 1.31 with a
/// CRD that has them). Tries until it knows.
pub(super) async fn selection(api: &Api<LogicalVolume>, node: &str) -> Selection {
    let field = format!("spec.nodeName={node}");
    let mut backoff = super::WORK_QUEUE.backoff;
    loop {
        match can_select(api, &field).await {
            Ok(true) => return Selection::Server(field),
            Ok(false) => {
                tracing::warn!(
                    "the API server cannot select LogicalVolumes by node, so this agent receives those of all nodes; install the current CustomResourceDefinition on Kubernetes 1.32 or later"
                );
                return Selection::Client;
            }
            Err(error) => {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot list LogicalVolumes; are the CustomResourceDefinition and the agent's ClusterRole installed? trying again"
                );
                tokio::time::sleep(backoff.fail()).await;
            }
        }
    }
}

/// Caches this node's objects, whoever selects them, and names each to `changed` when its change is there: all of them when they were
/// listed. Ends with `shutdown`.
pub(super) async fn follow(
    api: Api<LogicalVolume>,
    selection: Selection,
    node: &str,
    mut writer: LogicalVolumeWriter,
    changed: mpsc::UnboundedSender<String>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let config = match selection {
        Selection::Server(field) => watcher::Config::default().fields(&field),
        Selection::Client => watcher::Config::default(),
    };
    watch_selected("LogicalVolumes", api, config, shutdown, move |event| {
        if !is_own(&event, node) {
            return;
        }
        for name in writer.apply(event) {
            // Nobody listens only when everything ends
            drop(changed.send(name));
        }
    })
    .await
}

fn is_own(event: &Event<LogicalVolume>, node: &str) -> bool {
    match event {
        Event::Apply(volume) | Event::InitApply(volume) | Event::Delete(volume) => volume.spec.node_name == node,
        Event::Init | Event::InitDone => true,
    }
}
