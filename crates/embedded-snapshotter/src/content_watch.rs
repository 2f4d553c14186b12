//! Watches contents, where the API server has such objects.

use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::{Config, Error, Event};
use topolvm_kube::watch_selected_if_served;
use topolvm_runtime::{CancellationToken, error_chain};

use crate::content::Content;

/// Pause before an API server that does not serve the contents is asked again.
const UNSERVED_RETRY: Duration = Duration::from_mins(1);

/// Hands every change of a content to `apply` until `term` is cancelled. A cluster without such objects is asked every
/// minute whether it has them, with one line in the log.
pub(crate) async fn watch_contents<C: Content>(
    contents: Api<C>,
    term: CancellationToken,
    mut apply: impl FnMut(&Event<C>) + Send,
) -> anyhow::Result<()> {
    let mut is_logged = false;
    loop {
        let api = contents.clone();
        let watching = watch_selected_if_served(C::NAMES.contents, api, Config::default(), term.clone(), |event| {
            // Only what follows shows that the API server has listed them
            is_logged &= matches!(event, Event::Init);
            apply(&event);
        });
        let Some(refusal) = watching.await? else { return Ok(()) };
        if !is_logged {
            log_refusal::<C>(&refusal);
            is_logged = true;
        }
        if term.run_until_cancelled(tokio::time::sleep(UNSERVED_RETRY)).await.is_none() {
            return Ok(());
        }
    }
}

fn log_refusal<C: Content>(refusal: &Error) {
    let (error, kind) = (error_chain(refusal), C::NAMES.content);
    if C::NAMES.is_optional {
        tracing::info!(
            error,
            kind,
            "the API server does not serve this kind, which is fine if volume group snapshots are not needed; else \
             install the CustomResourceDefinitions of external-snapshotter, and allow list and watch of \
             volumegroupsnapshotcontents in the ClusterRole; asking again every minute"
        );
    } else {
        tracing::warn!(
            error,
            kind,
            "no snapshots are created or deleted; if snapshots are needed, install the CustomResourceDefinitions of \
             external-snapshotter, and allow list and watch of volumesnapshotcontents in the ClusterRole; trying again \
             every minute"
        );
    }
}
