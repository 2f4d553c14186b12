//! Failures that a test injects into requests.

use super::ApiServer;
use super::kind::Kind;

/// A failure of a request.
pub enum Failure {
    /// It is answered with this HTTP status and changes nothing.
    Status(u16),
    /// The connection breaks before the server has read it.
    Unreachable,
    /// It takes effect, but the connection breaks before the response.
    LostAnswer,
    /// It is never answered.
    Hang,
    /// It is served after this action, for instance another client's write. Only the first of several requests has it
    /// happen.
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

impl ApiServer {
    /// Answers the next `n` requests of this verb (as in authorisation rules, `*` for all) and resource with an HTTP
    /// status.
    pub fn fail_next(&self, verb: &str, resource: &str, n: usize, status: u16) {
        self.inject(verb, resource, n, Failure::Status(status));
    }

    /// Injects a failure into the next `n` requests of this verb and resource. Failures apply in the order of
    /// injection.
    pub fn inject(&self, verb: &str, resource: &str, n: usize, failure: Failure) {
        self.shared.lock().faults.add(verb, resource, n, failure);
    }

    /// Runs an action right before the next request of this verb and resource is served.
    pub fn before_next(&self, verb: &str, resource: &str, action: impl FnMut(&Self) + Send + 'static) {
        self.inject(verb, resource, 1, Failure::After(Box::new(action)));
    }

    /// Removes the injected failures that have not happened yet.
    pub fn clear_faults(&self) {
        self.shared.lock().faults = Faults::default();
    }

    /// Returns the failure that is due for a request. The action of [`Failure::After`] runs here, without the lock.
    pub(super) fn take_failure(&self, verb: &str, kind: &Kind) -> Option<Failure> {
        let failure = self.shared.lock().faults.take(verb, kind);
        if let Some(Failure::After(mut action)) = failure {
            action(self);
            return None;
        }
        failure
    }
}

/// The injected failures that are still to happen, in the order of injection.
#[derive(Default)]
pub(super) struct Faults(Vec<Fault>);

struct Fault {
    verb: String,
    resource: String,
    /// Requests that it is still to happen to.
    left: usize,
    failure: Failure,
}

impl Faults {
    fn add(&mut self, verb: &str, resource: &str, n: usize, failure: Failure) {
        self.0.push(Fault { verb: verb.to_owned(), resource: resource.to_owned(), left: n, failure });
    }

    fn take(&mut self, verb: &str, kind: &Kind) -> Option<Failure> {
        let is_due = |fault: &&mut Fault| {
            fault.left > 0 && (fault.verb == "*" || fault.verb == verb) && kind.has_name(&fault.resource)
        };
        let fault = self.0.iter_mut().find(is_due)?;
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
