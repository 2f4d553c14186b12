//! Watches the LogicalVolumes of this node only.

use futures::{Stream, TryStreamExt as _};
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use topolvm_api::LogicalVolume;

use crate::watching;

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
    let one = ListParams::default().fields(&field).limit(1);
    let mut backoff = super::RETRY;
    loop {
        match api.list(&one).await {
            Ok(_) => return Selection::Server(field),
            Err(kube::Error::Api(status)) if status.code == 400 => {
                tracing::warn!(
                    "the API server cannot select LogicalVolumes by node, so this agent receives those of all nodes; install the current CustomResourceDefinition on Kubernetes 1.32 or later"
                );
                return Selection::Client;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "cannot list LogicalVolumes; are the CustomResourceDefinition and the agent's ClusterRole installed? trying again"
                );
                tokio::time::sleep(backoff.fail()).await;
            }
        }
    }
}

/// The events of this node's objects, whoever picks them out.
pub(super) fn events(
    api: Api<LogicalVolume>,
    selection: Selection,
    node: String,
) -> impl Stream<Item = watcher::Result<Event<LogicalVolume>>> + Send {
    let config = match selection {
        Selection::Server(field) => watching::config().fields(&field),
        Selection::Client => watching::config(),
    };
    watcher::watcher(api, config).try_filter(move |event| {
        let is_own = match event {
            Event::Apply(volume) | Event::InitApply(volume) | Event::Delete(volume) => volume.spec.node_name == node,
            Event::Init | Event::InitDone => true,
        };
        std::future::ready(is_own)
    })
}
