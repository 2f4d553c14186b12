//! The claims that request what they do not have, from the events of a watch of all claims. Other claims use no memory
//! here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::claim_changes::prune;
use crate::claim_requests::ClaimRequests;

/// The queue of tasks.
pub(crate) type TaskSender = mpsc::UnboundedSender<Task>;

/// An operation on the volume of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Expand,
    Modify,
}

/// An operation on the volume of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Task {
    pub(crate) operation: Operation,
    pub(crate) claim: ObjectRef<PersistentVolumeClaim>,
}

/// Memory of the attempts of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempts {
    /// True if the last call certainly had no effect.
    pub(crate) has_failed: bool,
    /// An infeasible request is not repeated before.
    pub(crate) infeasible_until: Option<Instant>,
}

/// The pending claims. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct PendingClaims {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Takes what is to be done, while this process holds the Lease of the resizer.
    tasks: Option<TaskSender>,
    claims: HashMap<ObjectRef<PersistentVolumeClaim>, PendingClaim>,
    /// The claims that a list which has not ended has named so far.
    listed: HashSet<ObjectRef<PersistentVolumeClaim>>,
}

#[derive(Clone)]
struct PendingClaim {
    claim: Arc<PersistentVolumeClaim>,
    requests: ClaimRequests,
    /// True if its volume is known to be one of another driver.
    is_foreign: bool,
    expansion: Attempts,
    modification: Attempts,
}

impl PendingClaims {
    /// Sends to `tasks` all that is to be done, and from now on what is new. Earlier attempts are forgotten: another
    /// process may have called the driver since.
    pub(crate) fn connect(&self, tasks: TaskSender) {
        let state = &mut *self.state.lock();
        for (key, pending) in &mut state.claims {
            (pending.expansion, pending.modification) = (Attempts::default(), Attempts::default());
            pending.send_new(None, key, Some(&tasks));
        }
        state.tasks = Some(tasks);
    }

    /// Applies an event of the watch of claims.
    pub(crate) fn apply(&self, event: &Event<PersistentVolumeClaim>) {
        let mut state = self.state.lock();
        match event {
            Event::Init => state.listed.clear(),
            Event::InitApply(claim) => {
                if let Some(key) = state.apply(claim) {
                    state.listed.insert(key);
                }
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut state.listed);
                state.claims.retain(|key, _| listed.contains(key));
            }
            Event::Apply(claim) => drop(state.apply(claim)),
            Event::Delete(claim) => drop(state.claims.remove(&ObjectRef::from_obj(claim))),
        }
    }

    /// Returns a pending claim, as the watch has shown it last, and the attempts of this operation.
    pub(crate) fn get(&self, task: &Task) -> Option<(Arc<PersistentVolumeClaim>, Attempts)> {
        let state = self.state.lock();
        let pending = state.claims.get(&task.claim).filter(|pending| !pending.is_foreign)?;
        Some((pending.claim.clone(), pending.attempts(task.operation)))
    }

    /// Records the end of an attempt for the claim with this UID.
    pub(crate) fn record(&self, task: &Task, uid: &str, attempts: Attempts) {
        self.change(&task.claim, uid, |pending| match task.operation {
            Operation::Expand => pending.expansion = attempts,
            Operation::Modify => pending.modification = attempts,
        });
    }

    /// Records that the volume of the claim with this UID is one of another driver.
    pub(crate) fn mark_foreign(&self, key: &ObjectRef<PersistentVolumeClaim>, uid: &str) {
        self.change(key, uid, |pending| pending.is_foreign = true);
    }

    fn change(&self, key: &ObjectRef<PersistentVolumeClaim>, uid: &str, change: impl FnOnce(&mut PendingClaim)) {
        let mut state = self.state.lock();
        let pending = state.claims.get_mut(key).filter(|pending| pending.requests.binding.uid == uid);
        if let Some(pending) = pending {
            change(pending);
        }
    }
}

impl State {
    /// Keeps a claim if it is pending, and sends what is new. Returns its key if it is pending.
    fn apply(&mut self, claim: &PersistentVolumeClaim) -> Option<ObjectRef<PersistentVolumeClaim>> {
        let key = ObjectRef::from_obj(claim);
        let earlier = self.claims.remove(&key);
        let requests = ClaimRequests::from_claim(claim)?;
        let claim = Arc::new(prune(claim));
        let earlier = earlier.filter(|earlier| earlier.requests.binding == requests.binding);
        let (pending, earlier) = match earlier {
            Some(known) => (PendingClaim { claim, requests, ..known.clone() }, Some(known.requests)),
            None => (PendingClaim::new(claim, requests), None),
        };
        pending.send_new(earlier.as_ref(), &key, self.tasks.as_ref());
        self.claims.insert(key.clone(), pending);
        Some(key)
    }
}

impl PendingClaim {
    fn new(claim: Arc<PersistentVolumeClaim>, requests: ClaimRequests) -> Self {
        let (expansion, modification) = (Attempts::default(), Attempts::default());
        Self { claim, requests, is_foreign: false, expansion, modification }
    }

    const fn attempts(&self, operation: Operation) -> Attempts {
        match operation {
            Operation::Expand => self.expansion,
            Operation::Modify => self.modification,
        }
    }

    /// Sends the operations that the claim has not requested before.
    fn send_new(
        &self,
        earlier: Option<&ClaimRequests>,
        key: &ObjectRef<PersistentVolumeClaim>,
        tasks: Option<&TaskSender>,
    ) {
        let (Some(tasks), false) = (tasks, self.is_foreign) else { return };
        let ClaimRequests { expansion, modification, .. } = &self.requests;
        let earlier_expansion = earlier.and_then(|earlier| earlier.expansion.as_ref());
        let earlier_modification = earlier.and_then(|earlier| earlier.modification.as_ref());
        let expands = expansion.as_ref().is_some_and(|new| new.is_new_after(earlier_expansion));
        let modifies = modification.as_ref().is_some_and(|new| new.is_new_after(earlier_modification));
        let operations = [(expands, Operation::Expand), (modifies, Operation::Modify)];
        for (_, operation) in operations.into_iter().filter(|(is_new, _)| *is_new) {
            // The receiver is dropped when the term ends
            drop(tasks.send(Task { operation, claim: key.clone() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(name: &str, changes: &Value) -> PersistentVolumeClaim {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1",
                         "labels": {"app": "shop"}},
            "spec": {"volumeName": format!("pv-{name}"), "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        json_patch::merge(&mut object, changes);
        serde_json::from_value(object).unwrap()
    }

    fn settled(name: &str) -> PersistentVolumeClaim {
        claim(name, &json!({"status": {"capacity": {"storage": "2Gi"}}}))
    }

    fn expand(name: &str) -> Task {
        let claim = ObjectRef::new(name).within("default");
        Task { operation: Operation::Expand, claim }
    }

    fn drain(tasks: &mut mpsc::UnboundedReceiver<Task>) -> Vec<Task> {
        std::iter::from_fn(|| tasks.try_recv().ok()).collect()
    }

    #[test]
    fn pending_claims_are_those_that_request_more() {
        let (sender, mut tasks) = mpsc::unbounded_channel();
        let claims = PendingClaims::default();
        claims.connect(sender);
        claims.apply(&Event::Init);
        claims.apply(&Event::InitApply(settled("a")));
        claims.apply(&Event::InitApply(claim("b", &json!({}))));
        claims.apply(&Event::InitDone);
        assert_eq!(drain(&mut tasks), [expand("b")]);
        let (kept, _) = claims.get(&expand("b")).unwrap();
        assert_eq!((kept.metadata.labels.as_ref(), claims.state.lock().claims.len()), (None, 1));
        // Labels are nothing new; another size is
        claims.apply(&Event::Apply(claim("b", &json!({"metadata": {"labels": {"app": "bank"}}}))));
        assert_eq!(drain(&mut tasks), []);
        claims.apply(&Event::Apply(claim("b", &json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}))));
        claims.apply(&Event::Apply(claim("a", &json!({}))));
        assert_eq!(drain(&mut tasks), [expand("b"), expand("a")]);
        claims.apply(&Event::Apply(settled("b")));
        claims.apply(&Event::Delete(claim("a", &json!({}))));
        assert!(claims.state.lock().claims.is_empty());
    }

    #[test]
    fn list_forgets_claims_that_it_does_not_name() {
        let claims = PendingClaims::default();
        for name in ["a", "b"] {
            claims.apply(&Event::Apply(claim(name, &json!({}))));
        }
        claims.apply(&Event::Init);
        claims.apply(&Event::InitApply(claim("b", &json!({}))));
        claims.apply(&Event::InitDone);
        assert!(claims.get(&expand("a")).is_none() && claims.get(&expand("b")).is_some());
    }

    #[test]
    fn attempts_belong_to_one_claim_and_one_term() {
        let claims = PendingClaims::default();
        claims.apply(&Event::Apply(claim("a", &json!({}))));
        let failed = Attempts { has_failed: true, infeasible_until: None };
        claims.record(&expand("a"), "another", failed);
        assert_eq!(claims.get(&expand("a")).unwrap().1, Attempts::default());
        claims.record(&expand("a"), "a", failed);
        assert_eq!(claims.get(&expand("a")).unwrap().1, failed);
        let modify = Task { operation: Operation::Modify, ..expand("a") };
        assert_eq!(claims.get(&modify).unwrap().1, Attempts::default());
        // A claim of the same name
        claims.apply(&Event::Apply(claim("a", &json!({"metadata": {"uid": "new"}}))));
        assert_eq!(claims.get(&expand("a")).unwrap().1, Attempts::default());

        claims.record(&expand("a"), "new", failed);
        let (sender, mut tasks) = mpsc::unbounded_channel();
        claims.connect(sender);
        assert_eq!(drain(&mut tasks), [expand("a")]);
        assert_eq!(claims.get(&expand("a")).unwrap().1, Attempts::default());
    }

    #[test]
    fn foreign_claim_is_left_alone_until_it_has_another_volume() {
        let (sender, mut tasks) = mpsc::unbounded_channel();
        let claims = PendingClaims::default();
        claims.connect(sender);
        claims.apply(&Event::Apply(claim("a", &json!({}))));
        claims.mark_foreign(&expand("a").claim, "a");
        assert!(claims.get(&drain(&mut tasks)[0]).is_none());
        claims.apply(&Event::Apply(claim("a", &json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}))));
        assert_eq!(drain(&mut tasks), []);
        claims.apply(&Event::Apply(claim("a", &json!({"metadata": {"uid": "new"}}))));
        assert_eq!(drain(&mut tasks), [expand("a")]);
    }
}
