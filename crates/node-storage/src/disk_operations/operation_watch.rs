//! Watches the `DiskOperation` objects of this node, where the API server has such objects.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_api::DiskOperation;
use topolvm_kube::{node_selection, watch_selected_if_served};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

/// Pause before an API server that has no such objects is asked again.
const UNSERVED_RETRY: Duration = Duration::from_mins(10);
/// Pauses while the API server does not answer.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// The operations of a node by name.
pub(super) type Operations = BTreeMap<String, DiskOperation>;

/// Sends the operations of a node to `operations`, `None` while they are not known, until `shutdown` is cancelled.
pub(super) async fn follow(
    api: Api<DiskOperation>,
    node: String,
    operations: watch::Sender<Option<Operations>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let (mut is_logged, mut backoff) = (false, RETRY);
    loop {
        let selecting = node_selection(&api, &node);
        let Some(selection) = shutdown.run_until_cancelled(selecting).await else { return Ok(()) };
        let (refusal, pause) = match selection {
            Ok(selection) => {
                backoff.reset();
                let config = selection.unwrap_or_default();
                let mut listed = Operations::new();
                let apply = |event| {
                    is_logged = false;
                    apply(event, &node, &mut listed, &operations);
                };
                let watching = watch_selected_if_served("DiskOperations", api.clone(), config, shutdown.clone(), apply);
                let Some(refusal) = watching.await? else { return Ok(()) };
                (error_chain(&refusal), UNSERVED_RETRY)
            }
            Err(error) if matches!(&error, kube::Error::Api(status) if matches!(status.code, 403 | 404)) => {
                (error_chain(&error), UNSERVED_RETRY)
            }
            Err(error) => (error_chain(&error), backoff.fail()),
        };
        operations.send_replace(None);
        if !is_logged {
            tracing::warn!(
                error = refusal,
                "DiskOperations of this node are not handled; apply the CustomResourceDefinitions and the ClusterRole \
                 of this version; trying again"
            );
            is_logged = true;
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}

/// Applies an event of an object of the node. What a list shows counts when the list is complete.
fn apply(
    event: Event<DiskOperation>,
    node: &str,
    listed: &mut Operations,
    operations: &watch::Sender<Option<Operations>>,
) {
    match event {
        Event::Init => listed.clear(),
        Event::InitApply(operation) => insert(listed, operation, node),
        Event::InitDone => drop(operations.send_replace(Some(std::mem::take(listed)))),
        Event::Apply(operation) => {
            operations.send_modify(|all| insert(all.get_or_insert_default(), operation, node));
        }
        Event::Delete(operation) => operations.send_modify(|all| {
            all.get_or_insert_default().remove(operation.name());
        }),
    }
}

fn insert(operations: &mut Operations, mut operation: DiskOperation, node: &str) {
    if operation.spec.node_name == node {
        operation.metadata.managed_fields = None;
        operations.insert(operation.name().to_owned(), operation);
    }
}
