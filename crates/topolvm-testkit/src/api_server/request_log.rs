//! The log of the requests that came in.

use super::ApiServer;
use super::kind::Kind;

/// A request that came in.
#[derive(Clone, Debug)]
pub(super) struct LoggedRequest {
    pub(super) verb: &'static str,
    /// None for requests of no resource.
    pub(super) kind: Option<Kind>,
    /// The path with its parameters.
    pub(super) path: String,
}

impl ApiServer {
    /// Returns verb and path, with its parameters, of every request that came in.
    pub fn requests(&self) -> Vec<(&'static str, String)> {
        let state = self.shared.lock();
        state.requests.iter().map(|logged| (logged.verb, logged.path.clone())).collect()
    }

    /// Counts the requests of this verb (`*` for all) and resource that came in.
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let state = self.shared.lock();
        let matches = |logged: &&LoggedRequest| {
            (verb == "*" || verb == logged.verb) && logged.kind.as_ref().is_some_and(|kind| kind.has_name(resource))
        };
        state.requests.iter().filter(matches).count()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }
}
