//! Watches of a kind of object that last as long as the process: they reconnect indefinitely and log errors.

use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use kube::runtime::utils;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector::Lookup};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use crate::client::RECONNECT;

/// Timeout of a watch in seconds, after which the API server ends it; a connection without data for a little longer is
/// closed. It bounds how long a connection that died silently can go unnoticed.
const WATCH_SECONDS: u32 = 60;

/// Hands every change of the objects of `api` to `apply` until `shutdown` is cancelled. `what` names them in the log.
pub async fn watch_all<K>(
    what: &'static str,
    api: Api<K>,
    shutdown: CancellationToken,
    apply: impl FnMut(Event<K>) + Send,
) -> anyhow::Result<()>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_selected(what, api, watcher::Config::default(), shutdown, apply).await
}

/// Hands every change of the object of this name to `apply`, like [`watch_all`].
pub async fn watch_one<K>(
    what: &'static str,
    api: Api<K>,
    name: &str,
    shutdown: CancellationToken,
    apply: impl FnMut(Event<K>) + Send,
) -> anyhow::Result<()>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let selection = watcher::Config::default().fields(&format!("metadata.name={name}"));
    watch_selected(what, api, selection, shutdown, apply).await
}

/// Passes every change of the object of this name to `apply` until `shutdown` is cancelled, or until the API server
/// answers that it does not serve this kind or that this account may not watch it: then it returns that error.
pub async fn watch_one_if_served<K>(
    what: &'static str,
    api: Api<K>,
    name: &str,
    shutdown: CancellationToken,
    apply: impl FnMut(Event<K>) + Send,
) -> anyhow::Result<Option<watcher::Error>>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let selection = watcher::Config::default().fields(&format!("metadata.name={name}"));
    watch_selected_if_served(what, api, selection, shutdown, apply).await
}

/// Hands every change of the objects that `selection` selects to `apply`, like [`watch_one_if_served`].
pub async fn watch_selected_if_served<K>(
    what: &'static str,
    api: Api<K>,
    selection: watcher::Config,
    shutdown: CancellationToken,
    apply: impl FnMut(Event<K>) + Send,
) -> anyhow::Result<Option<watcher::Error>>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let is_refusal = |error: &watcher::Error| matches!(status_of(error), Some(403 | 404));
    watch_until(what, api, selection, shutdown, apply, is_refusal).await
}

/// Hands every change of the objects that `selection` selects to `apply`, like [`watch_all`].
pub async fn watch_selected<K>(
    what: &'static str,
    api: Api<K>,
    selection: watcher::Config,
    shutdown: CancellationToken,
    apply: impl FnMut(Event<K>) + Send,
) -> anyhow::Result<()>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_until(what, api, selection, shutdown, apply, |_| false).await.map(drop)
}

/// Watches until `shutdown` is cancelled, or until an error that is the end, which it returns.
async fn watch_until<K>(
    what: &'static str,
    api: Api<K>,
    selection: watcher::Config,
    shutdown: CancellationToken,
    mut apply: impl FnMut(Event<K>) + Send,
    is_end: impl Fn(&watcher::Error) -> bool + Send,
) -> anyhow::Result<Option<watcher::Error>>
where
    K: Resource + Lookup + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api, selection.timeout(WATCH_SECONDS)).backoff(ReconnectBackoff::default());
    pin_mut!(events);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = shutdown.cancelled() => return Ok(None),
        };
        match event {
            Some(Ok(event)) => {
                if matches!(event, Event::InitDone) {
                    tracing::info!(what, "listed; watching for changes");
                }
                apply(event);
            }
            // A normal end: what happened since is asked for with the next watch
            Some(Err(watcher::Error::WatchError(status))) if status.code == 410 => {
                tracing::debug!(what, "the watch fell behind; listing again");
            }
            Some(Err(error)) if is_end(&error) => return Ok(Some(error)),
            Some(Err(error)) => {
                tracing::warn!(what, error = error_chain(&error), "cannot watch; {}", advise(&error));
            }
            None => anyhow::bail!("the stream of {what} ended"),
        }
    }
}

/// Returns the HTTP status with which the API server answered.
fn status_of(error: &watcher::Error) -> Option<u16> {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(kube::Error::Api(status))
        | E::WatchStartFailed(kube::Error::Api(status))
        | E::WatchFailed(kube::Error::Api(status))
        | E::WatchError(status) => Some(status.code),
        E::InitialListFailed(_) | E::WatchStartFailed(_) | E::WatchFailed(_) | E::NoResourceVersion => None,
    }
}

/// Returns what an administrator can do about an error.
fn advise(error: &watcher::Error) -> &'static str {
    match status_of(error) {
        Some(404) => "its CustomResourceDefinition is not installed; install it. Trying again",
        Some(401) => {
            "the credentials are not valid: the token has expired, or the Node, pod or service account that it is \
             bound to was deleted; trying again"
        }
        Some(403) => "allow list and watch in the ClusterRole of this service account; trying again",
        Some(_) => "trying again",
        None => {
            "check the network, and the API server's address and credentials in the kubeconfig or service account; \
             trying again"
        }
    }
}

/// Pauses between attempts to watch.
#[derive(Clone, Debug)]
struct ReconnectBackoff(Backoff);

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self(RECONNECT)
    }
}

impl Iterator for ReconnectBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.fail())
    }
}

impl utils::Backoff for ReconnectBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthorized_watch_blames_the_credentials_and_no_role() {
        let failed = |code, reason: &str| {
            let status = kube::core::Status::failure("", reason).with_code(code).boxed();
            advise(&watcher::Error::InitialListFailed(kube::Error::Api(status)))
        };
        let (unauthorized, forbidden) = (failed(401, "Unauthorized"), failed(403, "Forbidden"));
        assert!(unauthorized.contains("token") && !unauthorized.contains("ClusterRole"), "{unauthorized}");
        assert!(forbidden.contains("ClusterRole"), "{forbidden}");
    }

    #[test]
    fn reconnect_backoff_is_five_seconds_at_most_and_is_reset() {
        let mut pauses = ReconnectBackoff::default();
        assert_eq!(pauses.by_ref().take(100).max(), Some(Duration::from_secs(5)));
        utils::Backoff::reset(&mut pauses);
        assert_eq!(pauses.next(), Some(Duration::from_millis(200)));
    }
}
