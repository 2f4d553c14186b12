//! Watches the Node object of this node.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_kube::watch_one;
use topolvm_runtime::CancellationToken;

/// Sends the metadata of the Node to `node`, `None` while there is no such object, until `shutdown` is cancelled.
pub(super) async fn follow(
    api: Api<PartialObjectMeta<Node>>,
    name: String,
    node: watch::Sender<Option<PartialObjectMeta<Node>>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut is_listed = false;
    watch_one("own Node", api, &name, shutdown, |event| match event {
        Event::Init => is_listed = false,
        Event::InitDone if !is_listed => {
            tracing::warn!(
                node = name,
                "the Node object does not exist; its capacity is published after it is created; check --nodename"
            );
            node.send_replace(None);
        }
        Event::InitDone => {}
        Event::InitApply(object) | Event::Apply(object) => {
            is_listed = true;
            node.send_replace(Some(object));
        }
        Event::Delete(_) => {
            node.send_replace(None);
        }
    })
    .await
}
