//! Follows lvmd's report of the storage, and reconnects when the stream breaks. A stream is from one process of lvmd,
//! which receives the labels of the node meanwhile.

use std::time::Duration;

use futures::TryStreamExt as _;
use lvmd_client::{LvmdClient, LvmdError};
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::NodeStorageStatus;
use topolvm_proto::lvmd::WatchStorageResponse;
use topolvm_runtime::Backoff;

use crate::disks::is_scan_successful;
use crate::node_labels::{self, NodeMetadata};
use crate::status::status_of;

/// Time for lvmd to come back. A restart takes less, and is nothing to write about.
const GRACE: Duration = Duration::from_secs(10);
/// Pause after an lvmd did not know the call: it may be exchanged for one that does.
const UNIMPLEMENTED_RETRY: Duration = Duration::from_mins(1);

/// The last state that lvmd reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// The status without its conditions; `None` if lvmd has not reported anything yet.
    pub(crate) status: Option<NodeStorageStatus>,
    /// False while lvmd has not scanned the disks, which the status then lacks.
    pub(crate) knows_disks: bool,
    /// False if lvmd does not answer, or does not know the call.
    pub(crate) is_connected: bool,
}

/// Follows lvmd indefinitely. The first reading comes when lvmd answers or is known not to.
pub(crate) async fn follow(
    lvmd: LvmdClient,
    nodes: watch::Receiver<Option<NodeMetadata>>,
    readings: watch::Sender<Option<Reading>>,
    mut backoff: Backoff,
) {
    let mut lost_at = Instant::now();
    let mut is_logged = false;
    loop {
        let mut is_answered = false;
        let apply = |response: WatchStorageResponse| {
            is_answered = true;
            let knows_disks = is_scan_successful(response.disk_report.as_ref());
            publish(&readings, Reading { status: Some(status_of(response)), knows_disks, is_connected: true });
        };
        let error = follow_stream(&lvmd, nodes.clone(), apply).await;
        if is_answered {
            (lost_at, is_logged) = (Instant::now(), false);
            backoff.reset();
        }
        let is_unimplemented = error.is_some_and(|error| error.is_unimplemented());
        if is_unimplemented && !is_logged {
            tracing::info!(
                "this lvmd does not report volume groups and disks; they are not in the NodeStorage of the node"
            );
            is_logged = true;
        }
        if is_unimplemented || lost_at.elapsed() >= GRACE {
            let last = readings.borrow().clone().unwrap_or_default();
            publish(&readings, Reading { is_connected: false, ..last });
        }
        tokio::time::sleep(if is_unimplemented { UNIMPLEMENTED_RETRY } else { backoff.fail() }).await;
    }
}

fn publish(readings: &watch::Sender<Option<Reading>>, reading: Reading) {
    readings.send_if_modified(|published| {
        let differs = published.as_ref() != Some(&reading);
        *published = Some(reading);
        differs
    });
}

/// Passes each report of lvmd to `apply`, and sends it the labels of the node. Returns the error that ended the stream,
/// if it was one.
async fn follow_stream(
    lvmd: &LvmdClient,
    nodes: watch::Receiver<Option<NodeMetadata>>,
    mut apply: impl FnMut(WatchStorageResponse),
) -> Option<LvmdError> {
    let mut stream = match lvmd.watch_storage().await {
        Ok(stream) => stream,
        Err(error) => return Some(error),
    };
    let reading = async {
        loop {
            match stream.try_next().await {
                Ok(Some(response)) => apply(response),
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    };
    tokio::select! {
        error = reading => error,
        never = node_labels::send_labels(lvmd, nodes) => match never {},
    }
}
