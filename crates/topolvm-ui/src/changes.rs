//! `/api/events`: notifies browsers, as server-sent events, that something has changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, header};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use topolvm_doctor::Checked;
use topolvm_runtime::CancellationToken;

use crate::cluster::Cluster;
use crate::usage::Viewer;

/// Pause after an event: changes meanwhile are one event.
const PAUSE: Duration = Duration::from_millis(300);
/// Time after which an event without a change is sent to a browser, which shows whether it is still connected.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a stream ends, and the browser opens another one: the server closes connections that have asked for
/// nothing for two minutes.
const LONGEST: Duration = Duration::from_secs(100);

/// The changes for a browser.
pub(crate) struct Changes {
    volumes: watch::Receiver<()>,
    capacity: watch::Receiver<()>,
    checked: watch::Receiver<Option<Arc<Checked>>>,
    shutdown: CancellationToken,
    /// Counts until the stream is dropped.
    _viewer: Viewer,
    ends_at: Instant,
    /// None before the first event.
    next_at: Option<Instant>,
}

impl Changes {
    /// Subscribes to the changes of a cluster. `viewer` is held until the stream ends.
    pub(crate) fn subscribe(cluster: &Cluster, viewer: Viewer, shutdown: CancellationToken) -> Self {
        let mut volumes = cluster.volumes_changed.clone();
        volumes.mark_unchanged();
        let mut checked = cluster.checked.clone();
        checked.mark_unchanged();
        let (capacity, ends_at) = (cluster.capacity.changes(), Instant::now() + LONGEST);
        Self { volumes, capacity, checked, shutdown, _viewer: viewer, ends_at, next_at: None }
    }

    /// Returns the answer that a browser reads event by event.
    pub(crate) fn response(self) -> Response<Body> {
        let events = stream::unfold(self, |mut changes| async {
            let event = changes.next_event().await?;
            Some((Ok::<_, Infallible>(Bytes::from_static(event.as_bytes())), changes))
        });
        let mut response = Response::new(Body::from_stream(events));
        let value = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, value);
        response
    }

    /// Returns the next event; none when the stream is to end.
    async fn next_event(&mut self) -> Option<&'static str> {
        let Some(next_at) = self.next_at else {
            // The browser does not know the changes from before the stream began
            self.next_at = Some(Instant::now());
            return Some("retry: 500\nevent: change\ndata: first\n\n");
        };
        let shutdown = self.shutdown.clone();
        let waiting = async {
            sleep_until(next_at).await;
            let deadline = self.ends_at.min(Instant::now() + KEEP_ALIVE);
            timeout_at(deadline, self.changed()).await
        };
        match shutdown.run_until_cancelled(waiting).await? {
            Ok(Some(())) => {
                self.next_at = Some(Instant::now() + PAUSE);
                Some("event: change\ndata: again\n\n")
            }
            Ok(None) => None,
            Err(_elapsed) => (Instant::now() < self.ends_at).then_some(": nothing has changed\n\n"),
        }
    }

    /// Waits for a change of anything; none when the watches have ended.
    async fn changed(&mut self) -> Option<()> {
        tokio::select! {
            changed = self.volumes.changed() => changed.ok(),
            changed = self.capacity.changed() => changed.ok(),
            changed = self.checked.changed() => changed.ok(),
        }?;
        // One change is often one of several of these
        self.volumes.mark_unchanged();
        self.capacity.mark_unchanged();
        self.checked.mark_unchanged();
        Some(())
    }
}
