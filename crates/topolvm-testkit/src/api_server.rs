//! A Kubernetes API server in memory behind a real `kube::Client`: it keeps objects, knows the rules that clients run
//! into (conflicts, finalizers, subresources, selectors, watches) and fails on demand.
//!
//! It needs no network, no files and no real clock; with tokio's paused time it is deterministic.

#![expect(clippy::indexing_slicing, reason = "reading a member that a JSON value lacks gives null")]

mod changes;
mod direct;
mod fault;
mod handler;
mod http_request;
mod json;
mod kind;
mod list;
mod mutating;
mod ownership;
mod patch;
mod request_log;
mod resource_request;
mod reviews;
mod selector;
mod state;
mod status_error;
mod store;
mod watch;
mod write;

use std::sync::Arc;

use kube::Client;

pub use changes::{Change, Changes};
pub use fault::Failure;
pub use kind::Kind;

use http_request::Target;
use state::{Ending, Shared, State};

/// A fake API server. Clones are the same server.
///
/// Resources are named in calls by their plural, as `pods`, and where two groups share it by
/// `logicalvolumes.topolvm.io`.
#[derive(Clone, Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiServer {
    /// Makes an empty server, which serves LogicalVolumes of both groups and the built-in resources that volumes touch.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared::new(kind::default_kinds())) }
    }

    /// Serves another resource, or a served one with other rules.
    pub fn serve(&self, kind: Kind) {
        let mut state = self.shared.lock();
        state.kinds.retain(|known| known.qualified_plural() != kind.qualified_plural());
        state.kinds.push(kind);
    }

    /// Stops serving a resource, as before its CustomResourceDefinition is installed.
    pub fn withdraw(&self, resource: &str) {
        self.shared.lock().kinds.retain(|kind| !kind.has_name(resource));
    }

    /// Lets field selectors name only these fields, none as on servers without selectable fields.
    pub fn set_selectable_fields(&self, resource: &str, fields: &[&str]) {
        for kind in self.shared.lock().kinds.iter_mut().filter(|kind| kind.has_name(resource)) {
            *kind = kind.clone().selectable(fields);
        }
    }

    /// Drops these fields, given as JSON pointers, from what is written: the CustomResourceDefinition lacks them.
    pub fn prune_fields(&self, resource: &str, fields: &[&str]) {
        for kind in self.shared.lock().kinds.iter_mut().filter(|kind| kind.has_name(resource)) {
            *kind = kind.clone().pruning(fields);
        }
    }

    /// Sets what the server writes as the time of creation and deletion from now on; it goes on with tokio's clock.
    pub fn set_clock(&self, now: jiff::Timestamp) {
        self.shared.lock().store.set_clock(now);
    }

    /// Returns a client with `default` as its namespace. Has to be called in a tokio runtime.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request| handler::handle_request(server.clone(), request));
        Client::new(service, "default")
    }

    /// Breaks all watches and refuses all connections from now on.
    pub fn disconnect(&self) {
        self.change(|state| {
            state.is_connected = false;
            state.end_watches(Ending::Broken);
        });
    }

    /// Takes connections again.
    pub fn reconnect(&self) {
        self.change(|state| state.is_connected = true);
    }

    /// Rejects the credentials of every request from now on, or accepts them again. Watches that run go on.
    pub fn reject_credentials(&self, rejects: bool) {
        self.shared.lock().rejects_credentials = rejects;
    }

    /// Ends all watches in an orderly way, as the real server does every few minutes.
    pub fn close_watches(&self) {
        self.change(|state| state.end_watches(Ending::Closed));
    }

    /// Forgets the history: running watches, and watches from an older version, fail with 410 Gone.
    pub fn expire(&self) {
        self.change(|state| {
            state.store.compact();
            state.end_watches(Ending::Expired);
        });
    }

    /// Sends a bookmark to all watches that take them.
    pub fn send_bookmarks(&self) {
        self.change(|state| state.bookmarks_requested += 1);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.notify_waiters();
    }
}

impl State {
    /// Returns the served resource of a path.
    fn find_kind(&self, target: &Target) -> Option<Kind> {
        let is_target =
            |kind: &&Kind| kind.group == target.group && kind.version == target.version && kind.plural == target.plural;
        let kind = self.kinds.iter().find(is_target)?;
        // Of namespaced kinds only lists and watches can be about all namespaces
        let scope_fits = match &target.namespace {
            Some(_) => kind.namespaced,
            None => !kind.namespaced || target.name.is_none(),
        };
        scope_fits.then(|| kind.clone())
    }
}
