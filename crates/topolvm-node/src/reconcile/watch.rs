//! Watches the LogicalVolumes of this node only.

use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use topolvm_api::LogicalVolume;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::kubernetes::watching::follow_selected;

use crate::Own;
use crate::own::name;

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
    let mut backoff = super::PACE.retry;
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

/// Keeps `own` of this node's objects, whoever picks them out, and names each to `changed` when its change is there: all of them when they
/// were listed. Ends with `shutdown`.
pub(super) async fn follow(
    api: Api<LogicalVolume>,
    selection: Selection,
    node: &str,
    own: &Own,
    changed: mpsc::UnboundedSender<String>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let config = match selection {
        Selection::Server(field) => watcher::Config::default().fields(&field),
        Selection::Client => watcher::Config::default(),
    };
    follow_selected("LogicalVolumes", api, config, shutdown, |event| {
        if !is_own(&event, node) {
            return;
        }
        own.apply(&event);
        for name in to_reconcile(&event, own) {
            // Nobody listens only when everything ends
            drop(changed.send(name));
        }
    })
    .await
}

/// The names of the objects of which there is something new. A list is shown only when it is complete.
fn to_reconcile(event: &Event<LogicalVolume>, own: &Own) -> Vec<String> {
    match event {
        Event::Apply(volume) | Event::Delete(volume) => vec![name(volume).to_owned()],
        Event::InitDone => own.names(),
        Event::Init | Event::InitApply(_) => Vec::new(),
    }
}

fn is_own(event: &Event<LogicalVolume>, node: &str) -> bool {
    match event {
        Event::Apply(volume) | Event::InitApply(volume) | Event::Delete(volume) => volume.spec.node_name == node,
        Event::Init | Event::InitDone => true,
    }
}

#[cfg(test)]
mod tests {
    use topolvm_testkit::fixtures::logical_volume;

    use super::*;

    /// The names that the events lead to, and which size is shown of each at that moment.
    fn work(own: &Own, events: impl IntoIterator<Item = Event<LogicalVolume>>) -> Vec<String> {
        let mut work = Vec::new();
        for event in events {
            own.apply(&event);
            for found in to_reconcile(&event, own) {
                let size = own.get(&found).map_or_else(|| "gone".to_owned(), |volume| volume.spec.size.0);
                work.push(format!("{found} {size}"));
            }
        }
        work
    }

    #[test]
    fn an_object_is_worked_on_when_its_change_is_shown_also_after_another_list() {
        let own = Own::default();
        let sized = |name: &str, size: &str| logical_volume(name).sized(size).build();
        let first =
            [Event::Init, Event::InitApply(sized("a", "1Gi")), Event::InitDone, Event::Apply(sized("b", "1Gi"))];
        assert_eq!(work(&own, first), ["a 1Gi", "b 1Gi"]);
        let again = [Event::Init, Event::InitApply(sized("a", "2Gi")), Event::InitDone];
        assert_eq!(work(&own, again), ["a 2Gi"]);
        assert_eq!(work(&own, [Event::Delete(sized("a", "2Gi"))]), ["a gone"]);
    }
}
