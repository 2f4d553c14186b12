//! `status --watch`: prints the rows again whenever they have changed.

use std::io::IsTerminal as _;
use std::time::Duration;

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, Format};
use cli_runtime::request::is_refused_watch;
use futures::{FutureExt as _, Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use topolvm_api::{LogicalVolume, NodeStorage};

use super::{shown, storage};
use crate::error::Error;

/// Debounce: changes that belong together, as of free space and of the volume that takes it, are printed once.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// Moves to the top left corner of a terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints rows until the program is interrupted, or the API server refuses the watch.
pub(super) async fn run(cluster: &Cluster, format: Format) -> Result<(), Error> {
    let Cluster { client, flavor } = cluster.clone();
    let (nodes, node_writer) = reflector::store::<Node>();
    let volume_writer = reflector::store::Writer::<LogicalVolume>::new(flavor);
    let volumes = volume_writer.as_reader();
    let node_changes = watcher(Api::<Node>::all(client.clone()), watcher::Config::default());
    let volume_changes = watcher(Api::<LogicalVolume>::all_with(client.clone(), &flavor), watcher::Config::default());
    let storage_writer = reflector::store::Writer::<NodeStorage>::new(flavor);
    let storage_reader = storage_writer.as_reader();
    // If the objects do not exist or this user may not list them, that does not change while this runs
    let storage = storage::list(cluster).await;
    let is_watched = storage.as_ref().is_ok_and(|storage| !storage.is_empty());
    let storage_changes = watcher(Api::<NodeStorage>::all_with(client.clone(), &flavor), watcher::Config::default());
    let storage_changes = futures::stream::iter(is_watched.then_some(storage_changes)).flatten();
    let mut changes = futures::stream::select_all([
        keep_refusals(node_changes.default_backoff().reflect(node_writer)).boxed_local(),
        keep_refusals(volume_changes.default_backoff().reflect(volume_writer)).boxed_local(),
        keep_refusals(storage_changes.default_backoff().reflect(storage_writer)).boxed_local(),
    ]);
    let mut printed: Option<String> = None;
    while changes.try_next().await?.is_some() {
        let end = tokio::time::Instant::now() + DEBOUNCE;
        while let Ok(more) = tokio::time::timeout_at(end, changes.try_next()).await {
            if more?.is_none() {
                return Ok(());
            }
        }
        if !is_listed(&nodes) || !is_listed(&volumes) || (is_watched && !is_listed(&storage_reader)) {
            continue;
        }
        let nodes: Vec<_> = nodes.state().iter().map(|node| Node::clone(node)).collect();
        let volumes: Vec<_> = volumes.state().iter().map(|volume| LogicalVolume::clone(volume)).collect();
        let storage = if is_watched { Ok(sorted(&storage_reader)) } else { storage.clone() };
        let text = shown(flavor, format, &nodes, &volumes, &storage)?;
        if printed.as_ref() != Some(&text) {
            let is_screen = std::io::stdout().is_terminal() && matches!(format, Format::Table | Format::Wide);
            let clear = if is_screen { CLEAR } else { "" };
            output::print(&format!("{clear}{text}"))?;
            printed = Some(text);
        }
    }
    Ok(())
}

fn sorted(storage: &reflector::Store<NodeStorage>) -> Vec<NodeStorage> {
    let mut all: Vec<_> = storage.state().iter().map(|storage| NodeStorage::clone(storage)).collect();
    all.sort_by(|one, other| one.name().cmp(other.name()));
    all
}

/// Returns true once all objects have been listed.
fn is_listed<K>(store: &reflector::Store<K>) -> bool
where
    K: reflector::Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    store.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok())
}

/// Drops the contents and errors of watch events, except the error of a refused watch: outages pass.
fn keep_refusals<K>(
    changes: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
) -> impl Stream<Item = Result<(), Error>> {
    changes.map(|change| match change {
        Err(error) if is_refused_watch(&error) => Err(Error::Watch(Box::new(error))),
        Ok(_) | Err(_) => Ok(()),
    })
}
