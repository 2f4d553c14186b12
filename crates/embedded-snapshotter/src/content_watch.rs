//! Watches VolumeSnapshotContents, where the API server has such objects.

use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::{Config, Event};
use topolvm_api::SnapshotContent;
use topolvm_kube::watch_selected_if_served;
use topolvm_runtime::{CancellationToken, error_chain};

/// Pause before an API server that does not serve VolumeSnapshotContents is asked again.
const UNSERVED_RETRY: Duration = Duration::from_mins(1);

/// Hands every change of a VolumeSnapshotContent to `apply` until `term` is cancelled. A cluster without snapshots is
/// asked every minute whether it has them, with one line in the log.
pub(crate) async fn watch_contents(
    contents: Api<SnapshotContent>,
    term: CancellationToken,
    mut apply: impl FnMut(&Event<SnapshotContent>) + Send,
) -> anyhow::Result<()> {
    let mut is_logged = false;
    loop {
        let (api, what) = (contents.clone(), "VolumeSnapshotContents");
        let watching = watch_selected_if_served(what, api, Config::default(), term.clone(), |event| {
            // Only what follows shows that the API server has listed them
            is_logged &= matches!(event, Event::Init);
            apply(&event);
        });
        let Some(refusal) = watching.await? else { return Ok(()) };
        if !is_logged {
            tracing::warn!(
                error = error_chain(&refusal),
                "no snapshots are created or deleted; if snapshots are needed, install the CustomResourceDefinitions \
                 of external-snapshotter, and allow list and watch of volumesnapshotcontents in the ClusterRole; \
                 trying again every minute"
            );
            is_logged = true;
        }
        if term.run_until_cancelled(tokio::time::sleep(UNSERVED_RETRY)).await.is_none() {
            return Ok(());
        }
    }
}
