//! Failures that tests ask for, and the log of what came in.

use super::ApiServer;
use super::kind::Kind;
use super::state::{Logged, State};

/// What is to happen to a request.
pub enum Failure {
    /// It is answered with this HTTP status and changes nothing.
    Status(u16),
    /// The connection breaks before the server has seen it.
    Unreachable,
    /// It takes effect, but the answer is lost on the way.
    LostAnswer,
    /// It is never answered.
    Hang,
    /// Something else happens first, for instance somebody else changes the object. Only the first of several requests
    /// has it happen.
    After(Box<dyn FnMut(&ApiServer) + Send>),
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(code) => write!(f, "Status({code})"),
            Self::Unreachable => f.write_str("Unreachable"),
            Self::LostAnswer => f.write_str("LostAnswer"),
            Self::Hang => f.write_str("Hang"),
            Self::After(_) => f.write_str("After(..)"),
        }
    }
}

pub(super) struct Fault {
    pub(super) verb: String,
    pub(super) resource: String,
    pub(super) left: usize,
    pub(super) failure: Failure,
}

impl ApiServer {
    /// Answers the next `n` requests of this verb (as in authorisation rules, `*` for all) and resource with an HTTP
    /// status.
    pub fn fail_next(&self, verb: &str, resource: &str, n: usize, status: u16) {
        self.inject(verb, resource, n, Failure::Status(status));
    }

    /// Lets something happen to the next `n` requests of this verb and resource. Faults apply in the order of
    /// injection.
    pub fn inject(&self, verb: &str, resource: &str, n: usize, failure: Failure) {
        self.shared.lock().faults.push(Fault {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            left: n,
            failure,
        });
    }

    /// Does something right before the next request of this verb and resource is served.
    pub fn before_next(&self, verb: &str, resource: &str, action: impl FnMut(&Self) + Send + 'static) {
        self.inject(verb, resource, 1, Failure::After(Box::new(action)));
    }

    /// Takes back all faults that have not happened yet.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Verb and path, with its parameters, of every request that came in.
    pub fn requests(&self) -> Vec<(&'static str, String)> {
        let state = self.shared.lock();
        state.requests.iter().map(|logged| (logged.verb, logged.path.clone())).collect()
    }

    /// How many requests of this verb (`*` for all) and resource came in.
    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let state = self.shared.lock();
        let matches = |logged: &&Logged| {
            (verb == "*" || verb == logged.verb) && logged.kind.as_ref().is_some_and(|kind| kind.is_called(resource))
        };
        state.requests.iter().filter(matches).count()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }

    /// The failure for a request, if one is due. What is to happen first happens here, without the lock.
    pub(super) fn take_failure(&self, verb: &str, kind: &Kind) -> Option<Failure> {
        let failure = self.shared.lock().take_failure(verb, kind);
        if let Some(Failure::After(mut action)) = failure {
            action(self);
            return None;
        }
        failure
    }
}

impl State {
    fn take_failure(&mut self, verb: &str, kind: &Kind) -> Option<Failure> {
        let due = |fault: &&mut Fault| {
            fault.left > 0 && (fault.verb == "*" || fault.verb == verb) && kind.is_called(&fault.resource)
        };
        let fault = self.faults.iter_mut().find(due)?;
        fault.left -= 1;
        Some(match &mut fault.failure {
            Failure::Status(code) => Failure::Status(*code),
            Failure::Unreachable => Failure::Unreachable,
            Failure::LostAnswer => Failure::LostAnswer,
            Failure::Hang => Failure::Hang,
            Failure::After(action) => Failure::After(std::mem::replace(action, Box::new(|_| {}))),
        })
    }
}
