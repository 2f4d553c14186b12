//! Watches the own Node object and no other.

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::watch;

use crate::watching::{self, Reconnect};

/// Keeps `node` at the metadata of the Node, or at `None` while there is no such object. Goes on for ever.
pub(super) async fn follow(
    api: Api<PartialObjectMeta<Node>>,
    name: String,
    node: watch::Sender<Option<PartialObjectMeta<Node>>>,
) {
    let config = watching::config().fields(&format!("metadata.name={name}"));
    let events = watcher(api, config).backoff(Reconnect::default());
    pin_mut!(events);
    let mut is_listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => is_listed = false,
            Ok(Event::InitApply(object)) => {
                is_listed = true;
                node.send_replace(Some(object));
            }
            Ok(Event::InitDone) if !is_listed => {
                tracing::warn!(
                    node = name,
                    "there is no Node object of this name; its capacity is published when it appears; is --nodename right?"
                );
                node.send_replace(None);
            }
            Ok(Event::InitDone) => {}
            Ok(Event::Apply(object)) => {
                node.send_replace(Some(object));
            }
            Ok(Event::Delete(_)) => {
                node.send_replace(None);
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "cannot watch the own Node; trying again"
                );
            }
        }
    }
}
