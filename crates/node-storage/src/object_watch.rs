//! Watches the `NodeStorage` of this node, where the API server has such objects.

use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use topolvm_api::NodeStorage;
use topolvm_kube::watch_one_if_served;
use topolvm_runtime::{CancellationToken, error_chain};

/// Pause before the next request to an API server that does not serve these objects. An administrator who has not
/// applied the manifests of this version does not need a log message all the time.
const UNSERVED_RETRY: Duration = Duration::from_mins(10);

/// The object as the API server has it; `None` if there is none.
pub(crate) type Object = Option<Box<NodeStorage>>;

/// Sends the object to `objects`, `None` while the API server has no such kind of objects, until `shutdown` is
/// cancelled.
pub(crate) async fn follow(
    api: Api<NodeStorage>,
    name: String,
    objects: watch::Sender<Option<Object>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut is_logged = false;
    loop {
        let mut listed = None;
        let watching = watch_one_if_served("own NodeStorage", api.clone(), &name, shutdown.clone(), |event| {
            // Also a watch that is refused begins with Init
            is_logged &= matches!(event, Event::Init);
            apply(event, &mut listed, &objects);
        });
        let Some(refusal) = watching.await? else { return Ok(()) };
        objects.send_replace(None);
        if !is_logged {
            tracing::warn!(
                error = error_chain(&refusal),
                "the storage of this node is not published as a NodeStorage; apply the CustomResourceDefinitions and \
                 the ClusterRole of this version, which are looked for every ten minutes"
            );
            is_logged = true;
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(UNSERVED_RETRY)).await.is_none() {
            return Ok(());
        }
    }
}

/// Applies an event. What a list shows counts when the list is complete.
fn apply(event: Event<NodeStorage>, listed: &mut Object, objects: &watch::Sender<Option<Object>>) {
    match event {
        Event::Init => *listed = None,
        Event::InitApply(object) => *listed = Some(pruned(object)),
        Event::InitDone => drop(objects.send_replace(Some(listed.take()))),
        Event::Apply(object) => drop(objects.send_replace(Some(Some(pruned(object))))),
        Event::Delete(_) => drop(objects.send_replace(Some(None))),
    }
}

/// Drops the fields that this agent does not read.
fn pruned(mut object: NodeStorage) -> Box<NodeStorage> {
    object.metadata.managed_fields = None;
    Box::new(object)
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::{ApiServer, Log};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn missing_definition_is_logged_once() {
        let server = ApiServer::new();
        server.withdraw("nodestorages");
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let (shutdown, (objects, _receiver)) = (CancellationToken::new(), watch::channel(None));
        let following = follow(Api::all(server.client()), "n1".to_owned(), objects, shutdown.clone());
        let (followed, ()) = tokio::join!(following, async {
            tokio::time::sleep(Duration::from_hours(1)).await;
            shutdown.cancel();
        });
        followed.unwrap();
        let lines = log.take();
        assert_eq!(lines.lines().filter(|line| line.contains("not published as a NodeStorage")).count(), 1, "{lines}");
    }
}
